"""Studies of multiple runs."""
