"""A trained network in use."""
