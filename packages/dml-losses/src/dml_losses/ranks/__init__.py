"""Losses over several ranks: one loss of all ranks' rows, and class weights of which each rank keeps some.

`global_batch` and `sharded_classes` are the modules that users wrap around a loss. `sharded_softmax` and `class_shard`
compute a class loss from the classes of one rank; `exchange` is what they send between ranks.
"""
