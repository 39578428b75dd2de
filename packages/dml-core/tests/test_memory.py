"""Compare the memory queue with a plain list."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core import MemoryQueue


def rows(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return distinct rows: row i contains the number i."""
    ids = torch.arange(first, first + count)
    return ids.float()[:, None].repeat(1, 3), ids


@given(st.integers(1, 9), st.lists(st.integers(0, 25), max_size=12), st.data())
@settings(deadline=None)
def test_holds_the_newest_rows_oldest_first(capacity, counts, data):
    queue = MemoryQueue(capacity, 3, extras={"step": torch.zeros((), dtype=torch.int64)})
    saved_at = data.draw(st.integers(0, len(counts)))
    pushed = 0
    for turn, count in enumerate(counts):
        if turn == saved_at:  # continue with a new queue that loads the state
            fresh = MemoryQueue(capacity, 3, extras={"step": torch.zeros((), dtype=torch.int64)})
            fresh.load_state_dict(copy.deepcopy(queue.state_dict()))
            queue = fresh
        embeddings, labels = rows(pushed, count)
        queue.enqueue(embeddings, labels, step=labels * 10)
        pushed += count
        newest = list(range(pushed))[-capacity:]
        contents = queue.contents()
        assert contents.labels.tolist() == newest
        assert contents.embeddings[:, 0].tolist() == newest
        assert contents.extras["step"].tolist() == [10 * row for row in newest]
        assert len(queue) == len(newest) == int(queue.fill)
        assert int(queue.pointer) == pushed % capacity


def test_pointer_and_fill_are_in_the_state_dict_and_shapes_never_change():
    queue = MemoryQueue(4, 3)
    before = {name: value.shape for name, value in queue.state_dict().items()}
    assert {"embeddings", "labels", "pointer", "fill"} == set(before)
    queue.enqueue(*rows(0, 7))
    assert {name: value.shape for name, value in queue.state_dict().items()} == before


def test_contents_are_copies_without_gradient():
    queue = MemoryQueue(2, 3)
    embeddings = torch.ones(2, 3, requires_grad=True)
    queue.enqueue(embeddings * 2, torch.tensor([1, 2]))
    contents = queue.contents()
    assert not contents.embeddings.requires_grad
    queue.enqueue(*rows(5, 2))
    assert contents.labels.tolist() == [1, 2]


def test_reset_empties_the_queue():
    queue = MemoryQueue(3, 3)
    queue.enqueue(*rows(1, 2))
    queue.reset()
    assert len(queue) == 0
    assert all(not value.any() for value in queue.state_dict().values())


def test_rows_are_stored_in_the_queues_dtype_and_extras_in_that_of_their_examples():
    queue = MemoryQueue(2, 3, {"step": torch.zeros((), dtype=torch.int64)}, dtype=torch.bfloat16)
    queue.enqueue(*rows(1, 1), step=torch.tensor([2**60 + 1]))
    with torch.autocast("cpu", dtype=torch.float16):
        contents = queue.contents()
    assert contents.embeddings.dtype == torch.bfloat16
    assert contents.extras["step"].tolist() == [2**60 + 1]  # a float can't represent this number


@pytest.mark.parametrize(
    ("embeddings", "labels", "extras", "message"),
    [
        ((2, 4), (2,), {}, r"embeddings has shape \(2, 4\); expected \(2, 3\)"),
        ((2, 3), (3,), {}, r"labels has shape \(3,\); expected \(2,\)"),
        ((), (), {}, r"embeddings has shape \(\); expected \(0, 3\)"),
        ((2, 3), (2,), {"step": torch.zeros(2)},
         "got rows for embeddings, labels, step; expected embeddings, labels"),
    ],
)  # fmt: skip
def test_misfits_are_refused_and_the_queue_is_unchanged(embeddings, labels, extras, message):
    queue = MemoryQueue(4, 3)
    queue.enqueue(*rows(0, 2))
    before = copy.deepcopy(queue.state_dict())
    with pytest.raises(ValueError, match=message):
        queue.enqueue(torch.zeros(embeddings), torch.zeros(labels, dtype=torch.int64), **extras)
    assert all(torch.equal(before[name], value) for name, value in queue.state_dict().items())


def test_loading_a_different_capacity_raises_with_both_sizes():
    with pytest.raises(RuntimeError, match="has capacity 5 and dimension 3; this one has 4 and 3"):
        MemoryQueue(4, 3).load_state_dict(MemoryQueue(5, 3).state_dict())


@pytest.mark.parametrize(("capacity", "dim", "name"), [(0, 3, "capacity"), (3, 0, "embedding_dim")])
def test_sizes_below_one_raise(capacity, dim, name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        MemoryQueue(capacity, dim)


def test_an_extra_named_like_an_attribute_raises():
    with pytest.raises(ValueError, match="'labels'"):
        MemoryQueue(2, 3, extras={"labels": torch.zeros(())})
