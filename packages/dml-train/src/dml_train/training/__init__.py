"""Training: from a recipe to a run's folder."""
