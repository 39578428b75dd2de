"""The data sets that a recipe's ``[dataset]`` table can name, and the loading of batches."""
