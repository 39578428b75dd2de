"""Rows of the loss's parameters sharded over ranks: clipping, and steps that the loss scaler skips."""

from __future__ import annotations

from train_support.sharded_ranks import in_ranks, step_as_one


def test_ranks_clip_by_one_norm_and_skip_a_step_together():
    in_ranks(2, step_as_one)
