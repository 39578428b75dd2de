"""Losses over several ranks: one loss of all ranks' rows, and class weights of which each rank keeps some.

`global_batch` and `sharded_classes` are the modules that users wrap around a loss; `class_shard` has the classes of one
rank. `dml_losses.exchange` is what ranks send to one another.
"""
