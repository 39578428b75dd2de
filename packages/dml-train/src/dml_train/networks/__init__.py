"""Networks from images to embeddings."""
