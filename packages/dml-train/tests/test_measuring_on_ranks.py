"""Evaluation during training: ranks embed a part each, share the measuring, and get the bits of one process."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measuring_ranks import be_refused, embed_together, exchange, measure, measure_alone
from sharded_ranks import in_ranks

from dml_train.measure.embed import items_of_rank
from dml_train.ranks.ranks import Ranks


def test_ranks_embed_to_the_bit_what_one_embeds():
    in_ranks(3, embed_together)


@given(num_items=st.integers(0, 5000), world_size=st.integers(1, 9))
def test_ranks_embed_every_item_once_in_whole_passes_evenly_shared(num_items, world_size):
    parts = [items_of_rank(num_items, Ranks(rank, world_size)) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(parts), np.arange(num_items))
    assert all(part[0] % 256 == 0 for part in parts if len(part))
    assert max(map(len, parts)) <= -(-num_items // (256 * world_size)) * 256


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_measure_together_what_one_measures(world_size):
    in_ranks(world_size, measure)


def test_an_evaluator_that_cannot_share_is_asked_on_the_first_rank():
    in_ranks(2, measure_alone)


def test_what_is_refused_is_refused_on_every_rank():
    in_ranks(2, be_refused)


def test_ranks_exchange_rows_and_counts():
    in_ranks(3, exchange)


def test_ranks_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [Ranks(local_world_size=n).threads for n in (1, 2, 3, 8, 16)] == [8, 4, 2, 1, 1]
