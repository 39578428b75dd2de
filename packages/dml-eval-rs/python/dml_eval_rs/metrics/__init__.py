"""Names of metrics, and results with their values."""
