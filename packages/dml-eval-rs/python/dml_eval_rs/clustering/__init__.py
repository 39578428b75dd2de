"""k-means, and the agreement of partitions."""
