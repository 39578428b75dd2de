"""Uses of a trained network: embedding files, search, and export."""
