"""Compare samplers with the definitions, using random labels."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core import ClassBalancedSampler, ShuffledSampler


@st.composite
def samplers(draw):
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=9))
    ids = draw(
        st.lists(
            st.integers(-(2**60), 2**60), min_size=len(sizes), max_size=len(sizes), unique=True
        )
    )
    labels = np.repeat(np.array(ids, dtype=np.int64), sizes)
    labels = labels[np.random.default_rng(0).permutation(len(labels))]
    return ClassBalancedSampler(
        labels,
        classes_per_batch=draw(st.integers(1, len(sizes))),
        images_per_class=draw(st.integers(1, 5)),
        seed=draw(st.integers(0, 2**32)),
        batches_per_epoch=draw(st.none() | st.integers(1, 12)),
    )


@given(samplers(), st.integers(0, 5))
@settings(deadline=None)
def test_a_batch_has_c_classes_with_k_images_each_and_uses_all_of_a_small_class_before_it_repeats(
    sampler, epoch
):
    sizes, k = Counter(sampler.labels.tolist()), sampler.images_per_class
    for position in range(len(sampler)):
        batch = sampler.batch_at(epoch, position)
        by_class = Counter(sampler.labels[batch].tolist())
        assert len(by_class) == sampler.classes_per_batch
        assert set(by_class.values()) == {k}
        drawn = Counter(batch.tolist())
        for index in np.flatnonzero(np.isin(sampler.labels, list(by_class))):
            size = sizes[int(sampler.labels[index])]
            assert k // size <= drawn[int(index)] <= -(-k // size)


def test_a_class_of_k_images_or_more_is_drawn_once_without_replacement():
    """These bits must not change, even if classes with fewer than K images are drawn in a new
    way.
    """
    sampler = ClassBalancedSampler(np.arange(24) // 4, 3, 4, seed=5)
    assert sampler.batch_at(1, 0).tolist() == [10, 11, 9, 8, 1, 2, 0, 3, 7, 5, 6, 4]
    sampler = ClassBalancedSampler(np.arange(24) // 8, 2, 3, seed=5)
    assert sampler.batch_at(1, 1).tolist() == [5, 6, 2, 18, 23, 16]


def test_every_image_of_a_small_class_is_repeated_equally_often():
    sampler = ClassBalancedSampler([0, 0, 0, 1, 1, 1, 1, 1], 2, 5, batches_per_epoch=600)
    drawn = Counter(index for batch in sampler for index in batch)
    # Two of three images are drawn twice: images should be drawn 1,000 ± 12 times.
    assert all(abs(drawn[index] - 1000) < 60 for index in range(3))
    assert all(drawn[index] == 600 for index in range(3, 8))


@given(samplers())
@settings(deadline=None)
def test_classes_come_equally_often_to_within_one_a_deck(sampler):
    classes = len(set(sampler.labels.tolist()))
    hands = classes // sampler.classes_per_batch
    for deck in range(len(sampler) // hands):
        seen = [
            label
            for position in range(deck * hands, (deck + 1) * hands)
            for label in set(sampler.labels[sampler.batch_at(0, position)].tolist())
        ]
        assert len(seen) == len(set(seen))


@given(samplers(), st.data())
@settings(deadline=None)
def test_a_state_saved_in_the_middle_of_an_epoch_gives_the_same_rest(sampler, data):
    stop = data.draw(st.integers(0, len(sampler)))
    sampler.set_epoch(data.draw(st.integers(0, 3)))
    batches = iter(sampler)
    for _ in range(stop):
        next(batches)
    state = sampler.state_dict()
    rest = list(batches) + list(sampler)  # the rest of this epoch, and the complete next epoch
    other = ClassBalancedSampler(
        sampler.labels,
        sampler.classes_per_batch,
        sampler.images_per_class,
        seed=sampler.seed,
        batches_per_epoch=len(sampler),
    )
    other.load_state_dict(state)
    assert list(other) + list(other) == rest


def test_batches_differ_between_epochs_and_seeds_and_are_otherwise_equal():
    labels = np.arange(100) // 5
    first = [ClassBalancedSampler(labels, 4, 2, seed=3).batch_at(e, 0).tolist() for e in (0, 0, 1)]
    assert first[0] == first[1] != first[2]
    assert ClassBalancedSampler(labels, 4, 2, seed=4).batch_at(0, 0).tolist() != first[0]


def test_each_deck_is_shuffled_anew_and_so_are_the_images_of_a_class():
    """Draw 2 epochs of ten decks, given twenty classes with ten images; a batch uses 2 images per
    class.
    """
    sampler = ClassBalancedSampler(np.arange(200) // 10, 5, 2, batches_per_epoch=40)
    epochs = np.stack(
        [[sampler.batch_at(epoch, position) for position in range(40)] for epoch in range(2)]
    )
    decks = (epochs[:, :, ::2] // 10).reshape(20, 20)
    assert len({tuple(deck) for deck in decks}) == 20
    assert (epochs[0] % 10 != epochs[1] % 10).any()
    batches = epochs[0]
    # The probability that an image is never drawn is 0.8¹⁰ = 0.11, so 179 ± 4 of the 200 images are
    # drawn.
    assert len(np.unique(batches)) > 150
    pairs = [tuple(sorted(pair % 10)) for pair in batches.reshape(-1, 2)]
    assert len(set(pairs)) > 40  # there are 45 possible pairs


def test_setting_the_epoch_moves_to_its_start():
    sampler = ClassBalancedSampler(np.arange(100) // 5, 4, 2, seed=3)
    whole = list(sampler)
    for _ in range(2):
        sampler.set_epoch(0)
        assert next(iter(sampler)) == whole[0]
        assert sampler.position == 1
    with pytest.raises(ValueError, match="epoch is -1; expected an integer of at least 0"):
        sampler.set_epoch(-1)


@pytest.mark.parametrize(
    ("sampler", "other", "message"),
    [
        (ClassBalancedSampler([0, 0, 1, 1], 1, 2), ClassBalancedSampler([0, 0, 1, 1], 2, 1),
         "classes_per_batch is 2"),
        (ClassBalancedSampler([0, 0, 1, 1], 1, 2, 0, 2),
         ClassBalancedSampler([0, 0, 1, 1], 1, 1, 0, 2),
         "images_per_class is 1"),
        (ClassBalancedSampler([0, 0, 1, 1], 1, 2), ClassBalancedSampler([0, 0, 1, 1], 1, 2, 0, 5),
         "batches_per_epoch is 5"),
        (ShuffledSampler([0, 0, 1, 1], 2), ShuffledSampler([0, 0, 1, 1, 1], 2), "num_items is 5"),
        (ShuffledSampler([0, 0, 1, 1, 1], 4), ShuffledSampler([0, 0, 1, 1, 1], 3),
         "batch_size is 3"),
    ],
)  # fmt: skip
def test_a_state_of_other_data_or_settings_raises_with_the_differences(sampler, other, message):
    with pytest.raises(ValueError, match=f"{message} in the state and"):
        sampler.load_state_dict(other.state_dict())


def test_an_epoch_has_about_as_many_images_as_the_data_set():
    assert len(ClassBalancedSampler(np.arange(100) // 5, 4, 2)) == 12
    assert len(ClassBalancedSampler([0, 1, 2], 3, 4)) == 1


def test_a_state_of_a_different_sampler_raises_and_keeps_the_position():
    labels = np.arange(20) // 4
    sampler = ClassBalancedSampler(labels, 2, 2, seed=1)
    sampler.set_epoch(5)
    with pytest.raises(ValueError, match="seed is 2 in the state and 1 here"):
        sampler.load_state_dict(ClassBalancedSampler(labels, 2, 2, seed=2).state_dict())
    assert sampler.state_dict()["epoch"] == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 0, 1], 3, 1), r"classes_per_batch is 3; expected at most 2"),
        (([0, 0, 1], 0, 1), r"classes_per_batch is 0; expected an integer of at least 1"),
        (([0, 0, 1], 1, 0), r"images_per_class is 0"),
        (([0, 0, 1], 2, 500_001), r"a batch of 1000002 images; expected at most 1000000"),
        (([0, 0, 1], 1.5, 1), r"classes_per_batch is 1.5"),
        (([0, 0, 1], True, 1), r"classes_per_batch is True"),
        (([0, 0, 1], 1, 1, -1), r"seed is -1"),
        (([0, 0, 1], 1, 1, 0, 0), r"batches_per_epoch is 0"),
        (([], 1, 1), r"labels has shape \(0,\)"),
        (([[0, 1]], 1, 1), r"labels has shape \(1, 2\)"),
        (([0.0, 1.0], 1, 1), r"labels has dtype float64"),
    ],
)
def test_bad_arguments_raise_with_the_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClassBalancedSampler(*arguments)


def test_numpys_integers_are_integers():
    sampler = ClassBalancedSampler([0, 0, 1], np.int64(2), np.int32(1), seed=np.uint8(3))
    assert sampler.state_dict() == ClassBalancedSampler([0, 0, 1], 2, 1, seed=3).state_dict()


@given(st.integers(1, 60), st.data())
@settings(deadline=None)
def test_the_shuffled_sampler_gives_no_item_twice_an_epoch(count, data):
    size = data.draw(st.integers(1, count))
    sampler = ShuffledSampler(np.zeros(count, dtype=np.int64), size, seed=1)
    epoch = [index for batch in sampler for index in batch]
    assert len(epoch) == len(set(epoch)) == count // size * size
    assert sampler.epoch == 1


def test_the_shuffled_sampler_gives_any_batch_in_any_order():
    sampler = ShuffledSampler(np.zeros(50, dtype=np.int64), 8, seed=1)
    batches = {
        (e, p): sampler.batch_at(e, p).tolist() for e in range(3) for p in range(len(sampler))
    }
    for (epoch, position), batch in reversed(batches.items()):
        assert sampler.batch_at(epoch, position).tolist() == batch


def test_the_shuffled_sampler_shuffles_anew_each_epoch_and_without_bias():
    labels = np.zeros(50, dtype=np.int64)
    orders = [
        [index for batch in ShuffledSampler(labels, 10, seed=seed) for index in batch]
        for seed in range(2)
    ]
    sampler = ShuffledSampler(labels, 10)
    orders += [[index for batch in sampler for index in batch] for _ in range(3)][1:]
    assert len({tuple(order) for order in orders}) == 4
    assert sorted(orders[0]) not in orders
    few = ShuffledSampler([0] * 5, 5, seed=1)
    first = Counter(int(few.batch_at(epoch, 0)[0]) for epoch in range(500))
    assert all(abs(first[item] - 100) < 45 for item in range(5))  # five standard deviations


def test_a_shuffled_batch_larger_than_the_data_raises():
    with pytest.raises(ValueError, match="batch_size is 4; expected at most 3"):
        ShuffledSampler([0, 1, 2], 4)
