"""Losses over multiple ranks: a loss of all ranks' rows, and class weights that are divided over
ranks.

Use the modules in `global_batch` and `sharded_classes` to wrap a loss. `class_shard` has the
classes of this rank, and `dml_losses.exchange` the functions that ranks use to exchange numbers.
"""
