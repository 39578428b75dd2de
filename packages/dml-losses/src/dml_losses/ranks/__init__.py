"""Losses over several ranks: one loss of all ranks' rows, and class weights of which each rank keeps some.

`global_batch` and `sharded_classes` are the modules that users wrap around a loss; `class_shard` has the classes of one
rank, and `spread_siglip` computes some of a batch's pairs. `dml_losses.exchange` is what ranks send to one another.
"""
