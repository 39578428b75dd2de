"""The metrics' names, and the results that hold their values."""
