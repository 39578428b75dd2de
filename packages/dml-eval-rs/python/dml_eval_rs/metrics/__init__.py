"""Names of metrics, and results with the values."""
