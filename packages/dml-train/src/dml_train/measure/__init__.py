"""From images to embeddings, and from embeddings to metrics."""
