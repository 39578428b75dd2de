"""Seeds made from counters must be all different, and equal a reference in plain integers."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dml_core.drawing import splitmix64
from dml_train.seeds import derive, row_seeds, seed_torch

MASK = 2**64 - 1


def mix_reference(word):
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & MASK
    return word ^ word >> 31


@given(st.integers(0, MASK))
def test_splitmix64_of_integers_and_arrays_equals_the_reference(word):
    assert splitmix64(word) == mix_reference(word)
    assert splitmix64(np.array([word], dtype=np.uint64)).tolist() == [mix_reference(word)]


@given(st.lists(st.integers(0, MASK), min_size=1, max_size=4))
def test_derive_equals_the_reference(counters):
    word = 0
    for counter in counters:
        word = mix_reference(((word ^ counter) + 0x9E3779B97F4A7C15) & MASK)
    assert derive(*counters) == word


def test_seeds_of_runs_steps_and_rows_differ_and_do_not_depend_on_other_rows():
    seeds = np.concatenate([row_seeds(s, t, np.arange(64)) for s in range(4) for t in range(64)])
    assert len(np.unique(seeds)) == len(seeds)
    apart = np.concatenate([row_seeds(0, 0, np.arange(4)), row_seeds(0, 0, np.arange(4, 8))])
    assert np.array_equal(seeds[:8], apart)


def test_torchs_draws_depend_on_the_counters_alone():
    def draw(*counters):
        seed_torch(torch.device("cpu"), *counters)
        return torch.rand(4)

    first = draw(1, 2)
    torch.rand(7)
    assert torch.equal(draw(1, 2), first)
    assert not torch.equal(draw(2, 1), first)
