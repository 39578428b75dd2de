"""Published data sets in the official layouts."""
