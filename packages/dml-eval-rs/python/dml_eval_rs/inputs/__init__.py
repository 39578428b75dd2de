"""Arrays of any library, checked and converted once for the core."""
