"""Contracts of data sets and batch samplers. Shapes: `N` items, `C` classes, `Q` queries, `G`
gallery.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, cast

import numpy as np
import torch

from dml_core import Labels, Matching, Relevance
from dml_core.protocols.data import (
    BatchSampler,
    Dataset,
    GroupedSplit,
    MiningSampler,
    RelatedDataset,
    Split,
)
from dml_core.protocols.evaluation import MiningEvaluator

ITEMS = 3  # how many items to load per call


class DatasetContract(ABC):
    """The properties that training and evaluation need. The data set should be small, since each
    test makes it.
    """

    @abstractmethod
    def make_dataset(self) -> Dataset:
        """Make the data set, with at least `ITEMS` training items."""

    def test_training_and_evaluation_share_no_class(self) -> None:
        """Classes of `train` must not be in `test` or `gallery`."""
        dataset = self.make_dataset()
        for name, split in self._splits(dataset):
            both = {*dataset.train.class_names} & {*split.class_names}
            assert name == "train" or not both, (
                f"the classes {sorted(both)[:3]} are in train and in {name}"
            )

    def test_labels_name_a_class_of_every_item(self) -> None:
        """Labels must be int64, with a label per item, and index `class_names`. All classes must
        have items.
        """
        for name, split in self._splits(self.make_dataset()):
            assert split.labels.dtype == np.int64, (
                f"the labels of {name} have dtype {split.labels.dtype}"
            )
            assert split.labels.shape == (len(split),), (
                f"labels of {name} have shape {split.labels.shape}; expected ({len(split)},)"
            )
            found, expected = np.unique(split.labels), np.arange(len(split.class_names))
            assert np.array_equal(found, expected), (
                f"labels of {name}: {found[:5]} …; expected 0 to {len(expected) - 1}"
            )

    def test_some_query_has_a_match(self) -> None:
        """The gallery must contain a match for some query: a listed item, or one of its class but
        not of its group.
        """
        dataset = self.make_dataset()
        if isinstance(dataset, RelatedDataset) and isinstance(dataset.matches, Relevance):
            assert len(dataset.matches.indices), "matches lists no match"
            return
        queries, items = dataset.test, dataset.test if dataset.gallery is None else dataset.gallery
        query_names, item_names = (
            np.array(split.class_names)[split.labels] for split in (queries, items)
        )
        matches_QG = query_names[:, None] == item_names
        if dataset.gallery is None:
            np.fill_diagonal(matches_QG, False)
        assert matches_QG.any(), "no class of test has another item in the gallery"
        if isinstance(queries, GroupedSplit) and isinstance(items, GroupedSplit):
            matches_QG &= queries.groups[:, None] != items.groups
            assert matches_QG.any(), "every match has its query's group, and so is excluded"

    def test_groups_are_those_of_queries_and_gallery(self) -> None:
        """Groups must be integers or strings, (N,). Either the test split and the gallery have
        groups, or neither.
        """
        dataset = self.make_dataset()
        kinds = {}
        for name, split in self._splits(dataset):
            if not isinstance(split, GroupedSplit):
                continue
            assert split.groups.shape == (len(split),), (
                f"groups of {name} have shape {split.groups.shape}; expected ({len(split)},)"
            )
            kinds[name] = (
                "integers" if split.groups.dtype.kind in "iu" else str(split.groups.dtype)[:2]
            )
            assert kinds[name] in ("integers", "<U"), (
                f"the groups of {name} have dtype {split.groups.dtype}"
            )
        if dataset.gallery is not None:
            assert ("test" in kinds) == ("gallery" in kinds), (
                f"expected groups in test and gallery, or in neither; found them in {[*kinds]}"
            )
        assert len({*kinds.values()}) <= 1, f"groups have different types: {kinds}"

    def test_matches_are_those_of_the_queries(self) -> None:
        """The `matches` of a `RelatedDataset` must fit the splits, and have the labels and groups
        of `test`.
        """
        dataset = self.make_dataset()
        if not isinstance(dataset, RelatedDataset):
            return
        matches, test, gallery = dataset.matches, dataset.test, dataset.gallery
        assert isinstance(matches, Labels | Relevance), f"matches is a {type(matches).__name__}"
        assert len(matches) == len(test), (
            f"matches has {len(matches)} queries; test has {len(test)} items"
        )
        grouped = [name for name, split in self._splits(dataset) if isinstance(split, GroupedSplit)]
        items: Labels | None = None
        if isinstance(matches, Relevance):
            assert not grouped, f"matches lists each query's matches, but {grouped} have groups"
        else:
            assert np.array_equal(matches.ids, test.labels), "matches has other labels than test"
            groups = test.groups if isinstance(test, GroupedSplit) else None
            same = groups is matches.groups is None or np.array_equal(
                np.array(matches.groups), np.array(groups)
            )
            assert same, "matches has other groups than test"
            if gallery is not None:
                items = Labels(
                    gallery.labels, gallery.groups if isinstance(gallery, GroupedSplit) else None
                )
        try:
            Matching(matches, items, None if gallery is None else len(gallery))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"matches doesn't fit test and gallery: {error}") from error

    def test_items_are_loaded_as_float32_images(self) -> None:
        """`load` must return finite float32 tensors (n, in_channels, height, width), augmented or
        not.
        """
        dataset = self.make_dataset()
        for name, split in self._splits(dataset):
            indices, seeds = self._some(split)
            for images in (split.load(indices), split.load(indices, seeds)):
                assert images.dtype == torch.float32, (
                    f"{name} loads {images.dtype}; expected float32"
                )
                assert images.ndim == 4, (
                    f"{name} loads {tuple(images.shape)}; expected four dimensions"
                )
                assert images.shape[:2] == (len(indices), dataset.in_channels), (
                    f"{name} loads the shape {tuple(images.shape)} for {len(indices)} items"
                )
                assert torch.isfinite(images).all(), f"{name} loads numbers that aren't finite"

    def test_an_image_is_a_function_of_its_index_and_seed(self) -> None:
        """A row must not depend on the other rows, on the order of the rows, or on earlier
        calls.
        """
        for name, split in self._splits(self.make_dataset()):
            indices, seeds = self._some(split)
            plain, augmented = split.load(indices), split.load(indices, seeds)
            for row, place in reversed(list(enumerate(indices))):
                one = np.array([place])
                assert torch.equal(split.load(one)[0], plain[row]), f"item {place} of {name} varies"
                alone = split.load(one, seeds[row : row + 1])[0]
                assert torch.equal(alone, augmented[row]), (
                    f"the augmentation of item {place} of {name} isn't a function of its seed"
                )

    def test_pictures_are_for_people(self) -> None:
        """`picture` must return (height, width, 3) uint8."""
        for name, split in self._splits(self.make_dataset()):
            picture = split.picture(0)
            assert picture.dtype == np.uint8, (
                f"a picture of {name} has dtype {picture.dtype}; expected uint8"
            )
            assert picture.shape[2:] == (3,), (
                f"{name}: a picture has {picture.shape}; expected (h, w, 3)"
            )

    def test_loader_processes_can_receive_it(self) -> None:
        """A pickled split must load the same images."""
        train = self.make_dataset().train
        indices, seeds = self._some(train)
        copied: Split = pickle.loads(pickle.dumps(train))
        assert torch.equal(copied.load(indices, seeds), train.load(indices, seeds)), (
            "a pickled split differs"
        )

    def _splits(self, dataset: Dataset) -> Iterator[tuple[str, Split]]:
        yield "train", dataset.train
        yield "test", dataset.test
        if dataset.gallery is not None:
            yield "gallery", dataset.gallery

    def _some(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Choose indices and seeds of some items."""
        number = min(ITEMS, len(split))
        indices = np.linspace(0, len(split) - 1, number).astype(np.int64)
        return indices, np.arange(number, dtype=np.uint64) + 11


class SamplerContract(ABC):
    """The properties that a sampler needs, so that a run can be resumed and batches will be equal
    on all ranks.
    """

    labels = np.repeat(np.arange(8), 6)  # (N,), the labels of the items to sample

    @abstractmethod
    def make_sampler(self, labels: np.ndarray, seed: int) -> BatchSampler:
        """Make a sampler for items with these labels, (N,) int64."""

    def test_batches_are_indices_of_items(self) -> None:
        """A batch must be a non-empty one-dimensional integer array of indices below N."""
        sampler = self._sampler()
        assert len(sampler) >= 1, "an epoch has no batch"
        for position in range(len(sampler)):
            batch = sampler.batch_at(0, position)
            assert batch.ndim == 1, (
                f"batch {position} has shape {batch.shape}; expected one dimension"
            )
            assert len(batch), f"batch {position} is empty"
            assert np.issubdtype(batch.dtype, np.integer), (
                f"batch {position} has dtype {batch.dtype}"
            )
            assert 0 <= batch.min() <= batch.max() < len(self.labels), (
                f"batch {position} has {batch}"
            )

    def test_batches_have_one_size(self) -> None:
        """All batches must be of equal size, since ranks share a batch equally."""
        sampler = self._sampler()
        sizes = {len(sampler.batch_at(0, position)) for position in range(len(sampler))}
        assert len(sizes) == 1, f"the batches have the sizes {sorted(sizes)}"

    def test_a_batch_is_a_function_of_seed_epoch_and_position(self) -> None:
        """In reverse order, a second sampler must draw the same batches, so that a run can resume
        anywhere.
        """
        sampler, other = self._sampler(), self._sampler()
        places = [(epoch, position) for epoch in (0, 1, 7) for position in range(len(sampler))]
        forwards = {place: sampler.batch_at(*place) for place in places}
        for place in reversed(places):
            assert np.array_equal(other.batch_at(*place), forwards[place]), (
                f"batch {place[1]} of epoch {place[0]} depends on earlier calls"
            )

    def test_seed_and_epoch_change_the_batches(self) -> None:
        """Different epochs and different seeds must give different batches."""
        sampler, other = self._sampler(), self.make_sampler(self.labels, 1)
        first = sampler.batch_at(0, 0)
        assert not np.array_equal(first, sampler.batch_at(1, 0)), "epochs 0 and 1 begin alike"
        assert not np.array_equal(first, other.batch_at(0, 0)), "another seed draws the same batch"

    def test_mined_negatives_determine_the_batches(self) -> None:
        """A `MiningSampler` must draw equal batches from equal negatives, also if pickled, as for
        loader processes.
        """
        sampler, other = self._sampler(), self._sampler()
        if not (isinstance(sampler, MiningSampler) and isinstance(other, MiningSampler)):
            return
        places = [(epoch, position) for epoch in (0, 1) for position in range(len(sampler))]
        before = [sampler.batch_at(*place) for place in places]
        mining = cast(MiningEvaluator, FirstOfOthers())
        negatives = sampler.find_negatives(mining, np.zeros((len(self.labels), 2)))
        assert sampler.negatives is None, "find_negatives changed the negatives in use"
        assert len(negatives) == len(self.labels), f"there are {len(negatives)} rows of negatives"
        sampler.set_negatives(negatives)
        other.set_negatives(negatives)
        mined = [sampler.batch_at(*place) for place in places]
        assert {len(batch) for batch in mined} == {len(before[0])}, (
            "mined batches have another size"
        )
        assert not all(np.array_equal(a, b) for a, b in zip(before, mined)), (
            "set_negatives changed no batch"
        )
        copied: BatchSampler = pickle.loads(pickle.dumps(sampler))
        for place, batch in reversed(list(zip(places, mined))):
            assert np.array_equal(other.batch_at(*place), batch), (
                f"batch {place} depends on earlier calls"
            )
            assert np.array_equal(copied.batch_at(*place), batch), (
                f"batch {place} differs after pickling"
            )
        sampler.set_negatives(None)
        for place, batch in zip(places, before):
            assert np.array_equal(sampler.batch_at(*place), batch), (
                "batches differ after set_negatives(None)"
            )

    def _sampler(self) -> BatchSampler:
        return self.make_sampler(self.labels, 0)


class FirstOfOthers:
    """An evaluator that can only mine: the hardest negatives are the first items of other
    classes.
    """

    def hard_negatives(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        k: int,
        *,
        below: Literal["hardest", "easiest"] | None = None,
        margin: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """List the first k items of other classes, (N, k)."""
        rows = [np.flatnonzero(labels != label)[:k] for label in labels]
        indices = np.array([np.pad(row, (0, k - len(row)), constant_values=-1) for row in rows])
        return np.zeros(indices.shape, np.float32), indices
