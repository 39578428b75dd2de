"""Data sets for a recipe's ``[dataset]`` table, and the loading of batches."""
