"""Which gallery items match a query, and which are excluded from its ranking."""
