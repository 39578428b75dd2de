"""The contract suites pass correct components, and each of their tests catches the fault that it tests for."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dml_core import ClassBalancedSampler, HardNegativeSampler, Labels, Relevance, ShuffledSampler
from dml_core.testing import (
    BackboneContract,
    DatasetContract,
    EvaluatorContract,
    LoggerContract,
    SamplerContract,
)


class TestClassBalanced(SamplerContract):
    def make_sampler(self, labels, seed):
        return ClassBalancedSampler(labels, classes_per_batch=3, images_per_class=2, seed=seed)


class TestShuffled(SamplerContract):
    def make_sampler(self, labels, seed):
        return ShuffledSampler(labels, batch_size=7, seed=seed)


class TestHardNegatives(SamplerContract):
    def make_sampler(self, labels, seed):
        return HardNegativeSampler(labels, classes_per_batch=4, images_per_class=2, seed=seed)


# --- correct components, whose parts a test replaces by faulty ones


@dataclasses.dataclass
class Noise:
    """A correct split of noise."""

    labels: np.ndarray
    class_names: list[str]

    def __len__(self):
        return len(self.labels)

    def load(self, indices, seeds=None):
        rows = []
        for row, index in enumerate(indices):
            generator = torch.Generator().manual_seed(int(index) if seeds is None else int(seeds[row]))
            rows.append(torch.randn(1, 4, 4, generator=generator))
        return torch.stack(rows)

    def picture(self, index):
        return np.full((4, 4, 3), index, dtype=np.uint8)


class NoiseSet:
    in_channels = 1
    gallery = None

    def __init__(self):
        self.train = Noise(np.repeat(np.arange(3), 2), ["a", "b", "c"])
        self.test = Noise(np.repeat(np.arange(2), 2), ["d", "e"])


class TestNoiseSet(DatasetContract):
    def make_dataset(self):
        return NoiseSet()


class TestNoiseSetWithGallery(DatasetContract):
    def make_dataset(self):
        dataset = NoiseSet()
        dataset.gallery = Noise(np.array([0, 1]), ["e", "f"])
        return dataset


@dataclasses.dataclass
class Grouped(Noise):
    """A correct split with groups."""

    groups: np.ndarray


LISTS = np.array([0, 1, 1, 2, 2]), np.array([1, 2])  # of four queries


class TestGroupedSet(DatasetContract):
    def make_dataset(self):
        return dataset_with(
            test=Grouped(np.repeat(np.arange(2), 2), ["d", "e"], np.array(["x", "y", "x", "x"]))
        )


class TestListedSet(DatasetContract):
    def make_dataset(self):
        return dataset_with(matches=Relevance(*LISTS, np.array([2, 0]), ignored=LISTS))


class TestLabelledSet(DatasetContract):
    def make_dataset(self):
        groups = np.array(["x", "y", "x", "x"])
        test = Grouped(np.repeat(np.arange(2), 2), ["d", "e"], groups)
        gallery = Grouped(np.array([0, 1, 1]), ["d", "e"], groups[:3])
        return dataset_with(test=test, gallery=gallery, matches=Labels(test.labels, groups, ignored=LISTS))


class Network(nn.Module):
    """A correct backbone."""

    def __init__(self, in_channels):
        super().__init__()
        self.num_features: Any = 4
        self.convolution = nn.Conv2d(in_channels, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images):
        return self.norm(self.convolution(images))


class TestNetwork(BackboneContract):
    def make_backbone(self, in_channels):
        return Network(in_channels)


class Figures(dict):
    """A correct evaluation: a mapping of metrics."""

    def __init__(self, metrics, per_query):
        super().__init__(metrics)
        self.per_query = per_query

    @classmethod
    def of_hits(cls, hits):
        return cls({"recall@1": float(hits.mean())}, {"recall@1": hits})

    def to_dict(self):
        return dict(self)


class BySorting:
    """A correct evaluator."""

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        alone = gallery is None
        _, nearest = self.nearest(embeddings, embeddings if alone else gallery, 1, exclude_self=alone)
        hits = (np.asarray(labels if alone else gallery_labels)[nearest[:, 0]] == labels).astype(np.float64)
        return Figures.of_hits(hits)

    def nearest(self, queries, gallery, k, *, exclude_self=False):
        distances = np.linalg.norm(queries[:, None] - gallery[None], axis=2)
        if exclude_self:
            np.fill_diagonal(distances, np.inf)
        indices = np.argsort(distances, axis=1)[:, :k]
        return np.take_along_axis(distances, indices, axis=1), indices

    def bytes_per_item(self, dim):
        return 4 * dim

    def restore(self, metrics, per_query):
        return Figures(metrics, dict(per_query))


class TestBySorting(EvaluatorContract):
    def make_evaluator(self):
        return BySorting()


class Lines:
    """A correct logger."""

    def __init__(self, directory, start_step):
        self.file = (directory / "log.txt").open("a")

    def log(self, step, values):
        self.file.write(f"{step} {values}\n")

    def close(self):
        self.file.close()


class TestLines(LoggerContract):
    def make_logger(self, directory, start_step):
        return Lines(directory, start_step)


# --- faults


def split_with(**changes):
    return dataclasses.replace(NoiseSet().train, **changes)


class Depends(Noise):
    calls = 0

    def load(self, indices, seeds=None):
        self.calls += 1
        return super().load(indices, seeds) + self.calls * 0.1


class Counting(Noise):
    def load(self, indices, seeds=None):
        return super().load(indices, None if seeds is None else np.arange(len(seeds)))


class Doubled(Noise):
    def load(self, indices, seeds=None):
        return super().load(indices, seeds).double()


class Grey(Noise):
    def picture(self, index):
        return np.zeros((4, 4), dtype=np.uint8)


class Unpicklable(Noise):
    def __reduce__(self):
        raise AssertionError("holds an open file")


def dataset_with(**changes):
    dataset = NoiseSet()
    for name, value in changes.items():
        setattr(dataset, name, value)
    return dataset


def grouped(groups, **changes):
    return dataset_with(test=Grouped(np.repeat(np.arange(2), 2), ["d", "e"], np.array(groups)), **changes)


def listed(*lists):
    return dataset_with(matches=Relevance(*lists))


LABELS, NAMES = np.repeat(np.arange(3), 2), ["a", "b", "c"]


@pytest.mark.parametrize(
    ("test", "faulty"),
    [
        ("training_and_evaluation_share_no_class", lambda: dataset_with(test=split_with())),
        ("labels_name_a_class_of_every_item", lambda: dataset_with(train=split_with(class_names=["a", "b"]))),
        (
            "labels_name_a_class_of_every_item",
            lambda: dataset_with(train=split_with(labels=LABELS.astype(np.int32))),
        ),
        ("some_query_has_a_match", lambda: dataset_with(test=Noise(np.arange(2), ["d", "e"]))),
        ("some_query_has_a_match", lambda: dataset_with(gallery=Noise(np.arange(1), ["f"]))),
        ("items_are_loaded_as_float32_images", lambda: dataset_with(train=Doubled(LABELS, NAMES))),
        ("items_are_loaded_as_float32_images", lambda: dataset_with(in_channels=3)),
        ("an_image_is_a_function_of_its_index_and_seed", lambda: dataset_with(train=Depends(LABELS, NAMES))),
        ("an_image_is_a_function_of_its_index_and_seed", lambda: dataset_with(train=Counting(LABELS, NAMES))),
        ("some_query_has_a_match", lambda: grouped(["x", "x", "y", "y"])),
        ("some_query_has_a_match", lambda: listed(LISTS[0] * 0, LISTS[1][:0])),
        ("groups_are_those_of_queries_and_gallery", lambda: grouped(["x", "y"])),
        ("groups_are_those_of_queries_and_gallery", lambda: grouped([0.5, 1, 2, 3])),
        (
            "groups_are_those_of_queries_and_gallery",
            lambda: grouped([1, 2, 3, 4], gallery=Noise(np.array([0, 1]), ["d", "e"])),
        ),
        (
            "groups_are_those_of_queries_and_gallery",
            lambda: grouped([1, 2, 3, 4], gallery=Grouped(np.array([0]), ["d"], np.array(["1"]))),
        ),
        ("matches_are_those_of_the_queries", lambda: listed(LISTS[0][:-1], LISTS[1])),
        ("matches_are_those_of_the_queries", lambda: listed(LISTS[0], LISTS[1] + 2)),
        ("matches_are_those_of_the_queries", lambda: dataset_with(matches=LISTS)),
        ("matches_are_those_of_the_queries", lambda: grouped([1, 2, 3, 4], matches=Relevance(*LISTS))),
        ("matches_are_those_of_the_queries", lambda: dataset_with(matches=Labels([0, 1, 0, 1]))),
        ("matches_are_those_of_the_queries", lambda: grouped([1, 2, 3, 4], matches=Labels([0, 0, 1, 1]))),
        (
            "matches_are_those_of_the_queries",
            lambda: grouped([1, 2, 3, 4], matches=Labels([0, 0, 1, 1], [1, 2, 3, 3])),
        ),
        ("pictures_are_for_people", lambda: dataset_with(test=Grey(np.array([0, 0]), ["d"]))),
        ("loader_processes_can_receive_it", lambda: dataset_with(train=Unpicklable(LABELS, NAMES))),
    ],
    ids=[
        "shared",
        "unnamed",
        "int32",
        "alone",
        "gallery",
        "double",
        "channels",
        "calls",
        "rows",
        "own groups",
        "empty lists",
        "short groups",
        "real groups",
        "gallery without groups",
        "groups of two kinds",
        "short offsets",
        "absent items",
        "bare lists",
        "groups and lists",
        "other labels",
        "missing groups",
        "other groups",
        "grey",
        "pickle",
    ],
)
def test_a_faulty_data_set_is_caught(test, faulty):
    class Contract(DatasetContract):
        def make_dataset(self):
            return faulty()

    with pytest.raises(AssertionError):
        getattr(Contract(), f"test_{test}")()


class Sampler:
    """A correct sampler, over which faults are laid."""

    def __init__(self, labels, seed):
        self.labels, self.seed, self.calls = labels, seed, 0

    def __len__(self):
        return 4

    def batch_at(self, epoch, position):
        return np.random.default_rng([self.seed, epoch, position]).permutation(len(self.labels))[:5]


class Beyond(Sampler):
    def batch_at(self, epoch, position):
        return super().batch_at(epoch, position) + 44


class Uneven(Sampler):
    def batch_at(self, epoch, position):
        return super().batch_at(epoch, position)[: 5 - position]


class Stateful(Sampler):
    def batch_at(self, epoch, position):
        self.calls += 1
        return super().batch_at(epoch, self.calls)


class Fixed(Sampler):
    def batch_at(self, epoch, position):
        return super().batch_at(0, position)


class Seedless(Sampler):
    def __init__(self, labels, seed):
        super().__init__(labels, 0)


class Mining(Sampler):
    """A correct sampler of mined negatives."""

    negatives = None

    def mines_before(self, epoch):
        return epoch > 0

    def find_negatives(self, evaluator, embeddings):
        return evaluator.hard_negatives(embeddings, self.labels, 2)[1]

    def set_negatives(self, negatives):
        self.negatives = negatives

    def batch_at(self, epoch, position):
        batch = super().batch_at(epoch, position)
        return batch if self.negatives is None else self.negatives[batch, 0]


class TestMining(SamplerContract):
    def make_sampler(self, labels, seed):
        return Mining(labels, seed)


class Hasty(Mining):
    def find_negatives(self, evaluator, embeddings):
        self.negatives = super().find_negatives(evaluator, embeddings)
        return self.negatives


class Indifferent(Mining):
    def batch_at(self, epoch, position):
        return Sampler.batch_at(self, epoch, position)


class Growing(Mining):
    def batch_at(self, epoch, position):
        batch = super().batch_at(epoch, position)
        return batch if self.negatives is None else np.append(batch, 0)


class Local(Mining):
    def __getstate__(self):
        return {**self.__dict__, "negatives": None}


class Clinging(Mining):
    def set_negatives(self, negatives):
        if negatives is not None:
            self.negatives = negatives


@pytest.mark.parametrize(
    ("test", "faulty"),
    [
        ("batches_are_indices_of_items", Beyond),
        ("batches_have_one_size", Uneven),
        ("a_batch_is_a_function_of_seed_epoch_and_position", Stateful),
        ("seed_and_epoch_change_the_batches", Fixed),
        ("seed_and_epoch_change_the_batches", Seedless),
        ("mined_negatives_determine_the_batches", Hasty),
        ("mined_negatives_determine_the_batches", Indifferent),
        ("mined_negatives_determine_the_batches", Growing),
        ("mined_negatives_determine_the_batches", Local),
        ("mined_negatives_determine_the_batches", Clinging),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_faulty_sampler_is_caught(test, faulty):
    class Contract(SamplerContract):
        make = Sampler

        def make_sampler(self, labels, seed):
            return self.make(labels, seed)

    getattr(Contract(), f"test_{test}")()
    Contract.make = faulty
    with pytest.raises(AssertionError):
        getattr(Contract(), f"test_{test}")()


class Wide(Network):
    def __init__(self, in_channels):
        super().__init__(in_channels)
        self.num_features = 5


class Unsaid(Network):
    def __init__(self, in_channels):
        super().__init__(in_channels)
        self.num_features = None


class Idle(Network):
    def __init__(self, in_channels):
        super().__init__(in_channels)
        self.unused = nn.Linear(2, 2)


class Mixing(Network):
    def forward(self, images):
        return super().forward(images) + images.mean()


class Forgetful(Network):
    def __init__(self, in_channels):
        super().__init__(in_channels)
        self.noise = torch.randn(4, 1, 1)

    def forward(self, images):
        return super().forward(images) + self.noise


class Overflowing(Network):
    def forward(self, images):
        return super().forward(images) / 0


@pytest.mark.parametrize(
    ("test", "faulty"),
    [
        ("is_a_module_that_says_its_width", Unsaid),
        ("features_have_the_stated_width", Wide),
        ("is_finite_under_autocast", Overflowing),
        ("gradient_reaches_every_parameter", Idle),
        ("evaluates_each_image_alone", Mixing),
        ("state_dict_round_trips", Forgetful),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_faulty_backbone_is_caught(test, faulty):
    class Contract(BackboneContract):
        def make_backbone(self, in_channels):
            return faulty(in_channels)

    with pytest.raises(AssertionError):
        getattr(Contract(), f"test_{test}")()


class Matched(BySorting):
    """A correct evaluator that takes labels with groups and lists, finds ranges, and mines."""

    takes_matches = True

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        alone = gallery is None
        items = embeddings if alone else gallery
        shape = len(embeddings), len(items)
        out = np.eye(len(items), dtype=bool) if alone else np.zeros(shape, bool)
        if not isinstance(labels, Relevance):
            queries, gallery_labels = (side if isinstance(side, Labels) else Labels(side)
                                       for side in (labels, labels if alone else gallery_labels))  # fmt: skip
            match = queries.ids[:, None] == gallery_labels.ids
            out |= np.isin(gallery_labels.ids, gallery_labels.junk)
            if queries.groups is not None:
                out |= match & (queries.groups[:, None] == gallery_labels.groups)
        else:
            match = self.pairs(labels, shape)
        if isinstance(labels, Labels | Relevance) and labels.ignored is not None:
            out |= self.pairs(labels.ignored, shape)
        distances = np.where(out, np.inf, np.linalg.norm(embeddings[:, None] - items[None], axis=2))
        hits = np.take_along_axis(match, distances.argmin(axis=1)[:, None], axis=1)[:, 0].astype(np.float64)
        return Figures.of_hits(hits)

    def pairs(self, lists, shape):
        found = np.zeros(shape, bool)
        found[np.repeat(np.arange(shape[0]), np.diff(lists.offsets).astype(int)), lists.items] = True
        return found

    def nearest(self, queries, gallery, k, *, exclude_self=False):
        distances, indices = super().nearest(queries, gallery, k, exclude_self=exclude_self)
        return -distances, indices

    def within(self, queries, gallery, threshold, *, max_results):
        scores, nearest = self.nearest(queries, gallery, len(gallery))
        offsets = np.concatenate([[0], np.cumsum((scores >= threshold).sum(axis=1))])
        if offsets[-1] > max_results:
            raise ValueError("too many")
        return offsets, nearest[scores >= threshold], scores[scores >= threshold]

    def hard_negatives(self, embeddings, labels, k, *, below=None, margin=0.0):
        scores, nearest = self.nearest(embeddings, embeddings, len(labels) - 1, exclude_self=True)
        positive = labels[nearest] == labels[:, None]
        bound = np.inf
        if below is not None:
            of_positives = np.where(positive, scores, np.inf if below == "hardest" else -np.inf)
            bound = (of_positives.min if below == "hardest" else of_positives.max)(axis=1)[:, None] - margin
        first = np.argsort(positive | (scores >= bound), axis=1, kind="stable")[:, :k]
        kept = ~np.take_along_axis(positive | (scores >= bound), first, axis=1)
        return np.take_along_axis(scores, first, axis=1), np.where(
            kept, np.take_along_axis(nearest, first, axis=1), -1
        )


class TestMatched(EvaluatorContract):
    def make_evaluator(self):
        return Matched()


def without(labels, *names):
    if not isinstance(labels, Labels):
        return labels
    kept = {"groups": labels.groups, "junk": labels.junk} | dict.fromkeys(names, ())
    lists = None if labels.ignored is None else (labels.ignored.offsets, labels.ignored.items)
    return Labels(
        labels.ids, kept["groups"] if "groups" not in names else None, junk=kept["junk"], ignored=lists
    )


class Groupless(Matched):
    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        return super().evaluate(
            embeddings, without(labels, "groups"), gallery, without(gallery_labels, "groups")
        )


class Junkful(Matched):
    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        return super().evaluate(embeddings, labels, gallery, without(gallery_labels, "junk"))


class Listless(Matched):
    def evaluate(self, embeddings, labels, *gallery):
        if isinstance(labels, Relevance):
            labels = Relevance(np.zeros(len(labels) + 1, int), np.zeros(0, int))
        return super().evaluate(embeddings, labels, *gallery)


class Boundless(Matched):
    def within(self, queries, gallery, threshold, *, max_results):
        return super().within(queries, gallery, threshold, max_results=2**60)


class Lenient(Matched):
    def within(self, queries, gallery, threshold, *, max_results):
        return super().within(queries, gallery, threshold - 0.5, max_results=max_results)


class Confused(Matched):
    def hard_negatives(self, embeddings, labels, k, *, below=None, margin=0.0):
        return super().hard_negatives(embeddings, labels // 2, k, below=below, margin=margin)


class Marginless(Matched):
    def hard_negatives(self, embeddings, labels, k, *, below=None, margin=0.0):
        return super().hard_negatives(embeddings, labels, k, below=below)


class Changed(Figures):
    """An evaluation whose `to_dict` a test replaces."""

    def __init__(self, figures, to_dict):
        super().__init__(figures, figures.per_query)
        self.to_dict = lambda: to_dict(dict(figures))


class Numbered(BySorting):
    def evaluate(self, *arrays):
        figures = super().evaluate(*arrays)
        return Figures({1: figures["recall@1"]}, {})


class Worded(BySorting):
    def evaluate(self, *arrays):
        return Figures({"recall@1": "high"}, {})


class Endless(BySorting):
    def evaluate(self, *arrays):
        return Figures({"recall@1": float("nan")}, {})


class Empty(BySorting):
    def evaluate(self, *arrays):
        return Figures({}, {})


class Unmapped(BySorting):
    def evaluate(self, *arrays):
        return types.SimpleNamespace(**vars(super().evaluate(*arrays)))


class Nested(BySorting):
    def evaluate(self, *arrays):
        return Changed(super().evaluate(*arrays), lambda metrics: metrics | {"recall": {"1": 0.5}})


class Rounded(BySorting):
    def evaluate(self, *arrays):
        return Changed(super().evaluate(*arrays), lambda metrics: {"recall@1": round(metrics["recall@1"], 1)})


class IntegerKeys(BySorting):
    def evaluate(self, *arrays):
        return Changed(super().evaluate(*arrays), lambda metrics: metrics | {1: 0.5})


class MeansOnly(BySorting):
    def evaluate(self, *arrays):
        figures = super().evaluate(*arrays)
        return Figures(figures, {"recall@1": figures.per_query["recall@1"].mean(keepdims=True)})


class OtherMeans(BySorting):
    def evaluate(self, *arrays):
        figures = super().evaluate(*arrays)
        return Figures(figures, {"recall@1": 1 - figures.per_query["recall@1"]})


class Unnamed(BySorting):
    def evaluate(self, *arrays):
        figures = super().evaluate(*arrays)
        return Figures(figures, {"hits": figures.per_query["recall@1"]})


class Writing(BySorting):
    def evaluate(self, embeddings, *arrays):
        embeddings /= 2
        return super().evaluate(embeddings, *arrays)


class Unsorted(BySorting):
    def nearest(self, *arguments, **options):
        scores, indices = super().nearest(*arguments, **options)
        return np.roll(scores, 1, axis=1), indices


class Selfish(BySorting):
    def nearest(self, queries, gallery, k, *, exclude_self=False):
        return super().nearest(queries, gallery, k)


class Weightless(BySorting):
    def bytes_per_item(self, dim):
        return 0


class Lossy(BySorting):
    def restore(self, metrics, per_query):
        return Figures({}, {})


@pytest.mark.parametrize(
    ("test", "faulty"),
    [
        ("an_evaluation_maps_names_to_values", Numbered),
        ("an_evaluation_maps_names_to_values", Worded),
        ("an_evaluation_maps_names_to_values", Endless),
        ("an_evaluation_maps_names_to_values", Empty),
        ("an_evaluation_maps_names_to_values", Unmapped),
        ("metrics_are_ready_for_json", Nested),
        ("metrics_are_ready_for_json", Rounded),
        ("metrics_are_ready_for_json", IntegerKeys),
        ("every_query_has_its_values", MeansOnly),
        ("every_query_has_its_values", OtherMeans),
        ("every_query_has_its_values", Unnamed),
        ("the_same_arrays_have_the_same_metrics", Writing),
        ("the_nearest_come_first", Unsorted),
        ("a_query_can_leave_itself_out", Selfish),
        ("items_have_a_size", Weightless),
        ("a_saved_evaluation_is_restored", Lossy),
        ("groups_and_lists_agree", Groupless),
        ("groups_and_lists_agree", Listless),
        ("junk_is_excluded", Junkful),
        ("all_items_above_a_similarity_are_found", Boundless),
        ("all_items_above_a_similarity_are_found", Lenient),
        ("hard_negatives_are_the_nearest_of_other_classes", Confused),
        ("hard_negatives_are_the_nearest_of_other_classes", Marginless),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_faulty_evaluator_is_caught(test, faulty):
    class Contract(EvaluatorContract):
        def make_evaluator(self):
            return faulty()

    with pytest.raises(AssertionError):
        getattr(Contract(), f"test_{test}")()


class Strict(Lines):
    def log(self, step, values):
        assert all(np.isfinite(list(values.values())))


class Once(Lines):
    def __init__(self, directory, start_step):
        assert not (directory / "log.txt").exists()
        super().__init__(directory, start_step)


class Named(Lines):
    def log(self, step, values):
        assert all(name.isidentifier() for name in values)


class Eager(Lines):
    def close(self):
        self.file.flush()
        assert self.file.tell()
        super().close()


@pytest.mark.parametrize(
    ("test", "faulty"),
    [
        ("values_are_logged_and_the_logger_closed", Named),
        ("numbers_that_are_not_finite_are_taken", Strict),
        ("a_run_resumes_into_its_folder", Once),
        ("a_logger_without_values_is_closed", Eager),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_faulty_logger_is_caught(test, faulty):
    class Contract(LoggerContract):
        def make_logger(self, directory, start_step):
            return faulty(directory, start_step)

    with pytest.raises(AssertionError):
        getattr(Contract(), f"test_{test}")()
