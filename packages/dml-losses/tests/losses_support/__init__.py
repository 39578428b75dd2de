"""What the tests of dml-losses share: slow references, and programs that train on several ranks."""
