"""Search for settings on held-out training classes."""
