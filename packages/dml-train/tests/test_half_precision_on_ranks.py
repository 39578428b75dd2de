"""Float16 on several ranks: gradients in the range of one process overflow on no rank."""

from __future__ import annotations

from train_support.sharded_ranks import gather_large_gradients, in_ranks


def test_ranks_get_the_float16_gradients_that_one_process_gets():
    in_ranks(2, gather_large_gradients)
