"""Published data sets in their official layouts."""
