"""What the tests of dml-core share."""
