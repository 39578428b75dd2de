"""Compare batches that contain mined hard negatives with the definition."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml_core import ClassBalancedSampler, HardNegativeSampler

LABELS = np.repeat(np.arange(8), 6)


def negatives_of(labels, k, random):
    """Draw k items of other classes per item; -1 means that an item is missing."""
    rows = [random.choice(np.append(np.flatnonzero(labels != label), -1), k) for label in labels]
    return np.array(rows, np.int64).reshape(len(labels), k)


@given(st.data())
def test_anchors_bring_their_negatives_and_every_class_comes_once(data):
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=7))
    labels = np.repeat(np.arange(len(sizes)) * 7 - 9, sizes)
    classes = data.draw(st.integers(2, len(sizes)))
    images, each = data.draw(st.integers(1, 4)), data.draw(st.integers(1, min(3, len(labels) - 1)))
    seed = data.draw(st.integers(0, 99))
    sampler = HardNegativeSampler(
        labels, classes, images, each, candidates=min(3, len(labels) - 1), seed=seed
    )
    balanced = ClassBalancedSampler(labels, classes, images, seed)
    negatives = negatives_of(labels, 3, np.random.default_rng(seed))
    anchors = max(1, classes // (1 + each))
    for position in range(len(sampler)):
        plain = balanced.batch_at(2, position)
        sampler.set_negatives(None)
        assert np.array_equal(sampler.batch_at(2, position), plain)
        sampler.set_negatives(negatives)
        batch = sampler.batch_at(2, position)
        counts = Counter(labels[batch].tolist())
        assert (len(counts), {*counts.values()}) == (classes, {images})
        assert np.array_equal(batch[: anchors * images], plain[: anchors * images])
        drawn = Counter(batch.tolist())
        for item, times in drawn.items():
            size = int((labels == labels[item]).sum())
            assert images // size <= times <= -(-images // size)
        # Per anchor, add up to M of the listed negatives in order, unless their class is already in
        # the batch.
        there, firsts = (
            {*labels[plain[: anchors * images]].tolist()},
            batch[::images][anchors:].tolist(),
        )
        for anchor in plain[: anchors * images : images]:
            listed, brought = {*negatives[anchor].tolist()} - {-1}, 0
            while brought < each and firsts and firsts[0] in listed:
                there.add(int(labels[firsts.pop(0)]))
                brought += 1
            free = {int(labels[item]) for item in listed} - there
            assert brought == each or not free or len(there) == classes
        rest = {int(labels[item]) for item in firsts}
        in_order = [
            int(row[0]) for row in plain.reshape(classes, images) if int(labels[row[0]]) in rest
        ]
        assert firsts == in_order  # rows of the balanced batch fill the rest


def test_negatives_are_mined_before_the_named_epochs():
    def epochs(**options):
        sampler = HardNegativeSampler(LABELS, 4, 2, **options)
        return [epoch for epoch in range(8) if sampler.mines_before(epoch)]

    assert epochs() == [1, 2, 3, 4, 5, 6, 7]
    assert epochs(mine_from=0, mine_every=3) == [0, 3, 6]
    assert epochs(mine_from=2, mine_every=4) == [2, 6]


def test_the_rule_goes_to_the_evaluator():
    class Evaluator:
        def hard_negatives(self, embeddings, labels, k, **rule):
            self.asked = embeddings, labels.tolist(), k, rule
            return np.zeros((48, k), np.float32), np.full((48, k), -1)

    evaluator = Evaluator()
    sampler = HardNegativeSampler(LABELS, 4, 2, candidates=5, below="hardest", margin=0.1)
    assert sampler.find_negatives(evaluator, "rows").shape == (48, 5)
    assert evaluator.asked == ("rows", LABELS.tolist(), 5, {"below": "hardest", "margin": 0.1})


def test_a_saved_state_holds_the_negatives():
    sampler = HardNegativeSampler(LABELS, 4, 2, seed=3)
    sampler.set_negatives(negatives_of(LABELS, 10, np.random.default_rng(0)))
    batches = iter(sampler)
    next(batches)
    state, expected = sampler.state_dict(), next(batches)
    other = HardNegativeSampler(LABELS, 4, 2, seed=3)
    other.load_state_dict(state)
    assert next(iter(other)) == expected
    with pytest.raises(ValueError, match="candidates is 10 in the state and 9 here"):
        HardNegativeSampler(LABELS, 4, 2, candidates=9, seed=3).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_batch": 9}, "classes_per_batch is 9; expected at most 8"),
        ({"classes_per_batch": 1},
         "classes_per_batch is 1; expected at least 2, for an anchor and a negative"),
        ({"candidates": 48}, "candidates is 48; expected at most 47, the number of other items"),
        ({"negatives_per_anchor": 0},
         "negatives_per_anchor is 0; expected an integer of at least 1"),
        ({"candidates": 2, "negatives_per_anchor": 3},
         "negatives_per_anchor is 3; expected at most candidates, 2"),
        ({"below": "semi"}, "below is 'semi'; expected 'hardest', 'easiest', or None"),
        ({"below": "hardest", "margin": -0.5}, "margin is -0.5; expected a finite number"),
        ({"margin": 0.5}, "margin is 0.5 and below is None"),
        ({"mine_from": -1}, "mine_from is -1"),
        ({"mine_every": 0}, "mine_every is 0"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HardNegativeSampler(LABELS, **{"classes_per_batch": 4, "images_per_class": 2, **options})


@pytest.mark.parametrize(
    ("negatives", "message"),
    [
        (np.zeros((47, 2), int),
         r"negatives has shape \(47, 2\) and dtype int64; expected \(48, k\) integers"),
        (np.full((48, 2), 0.5), "dtype float64; expected"),
        (np.full((48, 2), 48), "indices from 48 to 48; expected -1 to 47"),
        (np.full((48, 2), 47), "negatives of item 42 include an item of the same class"),
    ],
    ids=["shape", "dtype", "range", "class"],
)  # fmt: skip
def test_wrong_negatives_are_refused(negatives, message):
    with pytest.raises(ValueError, match=message):
        HardNegativeSampler(LABELS, 4, 2).set_negatives(negatives)
