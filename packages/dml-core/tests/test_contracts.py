"""The contract suites must pass correct components; the tests in a suite must catch the tested
faults.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np
import pytest
import torch
from core_support import suite
from torch import nn

from dml_core import ClassBalancedSampler, HardNegativeSampler, Labels, Relevance, ShuffledSampler
from dml_core.testing import (
    BackboneContract,
    DatasetContract,
    EvaluatorContract,
    LoggerContract,
    SamplerContract,
)
from dml_eval_rs.evaluators import Evaluator

TestClassBalanced = suite(
    SamplerContract, lambda labels, seed: ClassBalancedSampler(labels, 3, 2, seed=seed)
)
TestShuffled = suite(
    SamplerContract, lambda labels, seed: ShuffledSampler(labels, batch_size=7, seed=seed)
)
TestHardNegatives = suite(
    SamplerContract, lambda labels, seed: HardNegativeSampler(labels, 4, 2, seed=seed)
)


# --- correct components; the tests replace some of their methods by faulty methods


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
            generator = torch.Generator().manual_seed(
                int(index) if seeds is None else int(seeds[row])
            )
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


@dataclasses.dataclass
class Grouped(Noise):
    """A correct split with groups."""

    groups: np.ndarray


LISTS = np.array([0, 1, 1, 2, 2]), np.array([1, 2])  # offsets and items of four queries' lists


def dataset_with(**changes):
    dataset = NoiseSet()
    for name, value in changes.items():
        setattr(dataset, name, value)
    return dataset


def grouped(groups, **changes):
    return dataset_with(
        test=Grouped(np.repeat(np.arange(2), 2), ["d", "e"], np.array(groups)), **changes
    )


def labelled():
    groups = np.array(["x", "y", "x", "x"])
    gallery = Grouped(np.array([0, 1, 1]), ["d", "e"], groups[:3])
    return grouped(groups, gallery=gallery, matches=Labels([0, 0, 1, 1], groups, ignored=LISTS))


TestNoiseSet = suite(DatasetContract, NoiseSet)
TestNoiseSetWithGallery = suite(
    DatasetContract, lambda: dataset_with(gallery=Noise(np.array([0, 1]), ["e", "f"]))
)
TestGroupedSet = suite(DatasetContract, lambda: grouped(["x", "y", "x", "x"]))
TestListedSet = suite(
    DatasetContract,
    lambda: dataset_with(matches=Relevance(*LISTS, np.array([2, 0]), ignored=LISTS)),
)
TestLabelledSet = suite(DatasetContract, labelled)


class Network(nn.Module):
    """A correct backbone."""

    def __init__(self, in_channels):
        super().__init__()
        self.num_features: Any = 4
        self.convolution = nn.Conv2d(in_channels, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images):
        return self.norm(self.convolution(images))


TestNetwork = suite(BackboneContract, Network)


class Figures(dict):
    """A correct evaluation: a mapping from the names of metrics to values."""

    def __init__(self, metrics, per_query):
        super().__init__(metrics)
        self.per_query = per_query

    def to_dict(self):
        return dict(self)


class BySorting:
    """A correct evaluator."""

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        alone = gallery is None
        _, nearest = self.nearest(
            embeddings, embeddings if alone else gallery, 1, exclude_self=alone
        )
        hits = (np.asarray(labels if alone else gallery_labels)[nearest[:, 0]] == labels).astype(
            np.float64
        )
        return Figures({"recall@1": float(hits.mean())}, {"recall@1": hits})

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


TestBySorting = suite(EvaluatorContract, BySorting)


class Lines:
    """A correct logger."""

    def __init__(self, directory, start_step):
        self.file = (directory / "log.txt").open("a")

    def log(self, step, values):
        self.file.write(f"{step} {values}\n")

    def close(self):
        self.file.close()


TestLines = suite(LoggerContract, Lines)


# --- faults, which replace a method of a correct component


def altered(base, **methods):
    return type(base.__name__, (base,), methods)


def train_with(base=Noise, **methods):
    return dataset_with(train=altered(base, **methods)(np.repeat(np.arange(3), 2), ["a", "b", "c"]))


def split_with(**changes):
    return dataclasses.replace(NoiseSet().train, **changes)


def listed(*lists):
    return dataset_with(matches=Relevance(*lists))


def load_by_calls(self, indices, seeds=None):
    self.calls = getattr(self, "calls", 0) + 1
    return Noise.load(self, indices, seeds) + self.calls * 0.1


def load_by_rows(self, indices, seeds=None):
    return Noise.load(self, indices, None if seeds is None else np.arange(len(seeds)))


def reject_pickling(self):
    raise AssertionError("holds an open file")


FOUR = [1, 2, 3, 4]
DATASETS = {
    "training_and_evaluation_share_no_class": {"shared": lambda: dataset_with(test=split_with())},
    "labels_name_a_class_of_every_item": {
        "unnamed": lambda: dataset_with(train=split_with(class_names=["a", "b"])),
        "int32": lambda: dataset_with(
            train=split_with(labels=np.repeat(np.arange(3, dtype=np.int32), 2))
        ),
    },
    "some_query_has_a_match": {
        "alone": lambda: dataset_with(test=Noise(np.arange(2), ["d", "e"])),
        "gallery": lambda: dataset_with(gallery=Noise(np.arange(1), ["f"])),
        "own groups": lambda: grouped(["x", "x", "y", "y"]),
        "empty lists": lambda: listed(LISTS[0] * 0, LISTS[1][:0]),
    },
    "items_are_loaded_as_float32_images": {
        "double": lambda: train_with(load=lambda self, *some: Noise.load(self, *some).double()),
        "channels": lambda: dataset_with(in_channels=3),
    },
    "an_image_is_a_function_of_its_index_and_seed": {
        "calls": lambda: train_with(load=load_by_calls),
        "rows": lambda: train_with(load=load_by_rows),
    },
    "groups_are_those_of_queries_and_gallery": {
        "short groups": lambda: grouped(["x", "y"]),
        "real groups": lambda: grouped([0.5, 1, 2, 3]),
        "gallery without groups": lambda: grouped(
            FOUR, gallery=Noise(np.array([0, 1]), ["d", "e"])
        ),
        "groups of two kinds": lambda: grouped(
            FOUR, gallery=Grouped(np.array([0]), ["d"], np.array(["1"]))
        ),
    },
    "matches_are_those_of_the_queries": {
        "short offsets": lambda: listed(LISTS[0][:-1], LISTS[1]),
        "absent items": lambda: listed(LISTS[0], LISTS[1] + 2),
        "bare lists": lambda: dataset_with(matches=LISTS),
        "groups and lists": lambda: grouped(FOUR, matches=Relevance(*LISTS)),
        "other labels": lambda: dataset_with(matches=Labels([0, 1, 0, 1])),
        "missing groups": lambda: grouped(FOUR, matches=Labels([0, 0, 1, 1])),
        "other groups": lambda: grouped(FOUR, matches=Labels([0, 0, 1, 1], [1, 2, 3, 3])),
    },
    "pictures_are_for_people": {
        "grey": lambda: train_with(picture=lambda self, index: np.zeros((4, 4), dtype=np.uint8))
    },
    "loader_processes_can_receive_it": {"pickle": lambda: train_with(__reduce__=reject_pickling)},
}


class Sampler:
    """A correct sampler."""

    def __init__(self, labels, seed):
        self.labels, self.seed, self.calls = labels, seed, 0

    def __len__(self):
        return 4

    def batch_at(self, epoch, position):
        return np.random.default_rng([self.seed, epoch, position]).permutation(len(self.labels))[:5]


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


TestSampler = suite(SamplerContract, Sampler)
TestMining = suite(SamplerContract, Mining)


def count_calls(self, epoch, position):
    self.calls += 1
    return Sampler.batch_at(self, epoch, self.calls)


def find_and_set(self, evaluator, embeddings):
    self.negatives = Mining.find_negatives(self, evaluator, embeddings)
    return self.negatives


def grow(self, epoch, position):
    batch = Mining.batch_at(self, epoch, position)
    return batch if self.negatives is None else np.append(batch, 0)


class Local(Mining):  # `pickle` finds the class by name
    def __getstate__(self):
        return {**self.__dict__, "negatives": None}


def keep_old(self, negatives):
    if negatives is not None:
        self.negatives = negatives


class Clinging(Mining):
    set_negatives = keep_old


SAMPLERS = {
    "batches_are_indices_of_items": {
        "beyond": altered(
            Sampler, batch_at=lambda self, *place: Sampler.batch_at(self, *place) + 44
        )
    },
    "batches_have_one_size": {
        "uneven": altered(
            Sampler, batch_at=lambda self, *place: Sampler.batch_at(self, *place)[: 5 - place[1]]
        )
    },
    "a_batch_is_a_function_of_seed_epoch_and_position": {
        "stateful": altered(Sampler, batch_at=count_calls)
    },
    "seed_and_epoch_change_the_batches": {
        "epochs": altered(
            Sampler, batch_at=lambda self, epoch, position: Sampler.batch_at(self, 0, position)
        ),
        "seeds": lambda labels, seed: Sampler(labels, 0),
    },
    "mined_negatives_determine_the_batches": {
        "hasty": altered(Mining, find_negatives=find_and_set),
        "indifferent": altered(Mining, batch_at=Sampler.batch_at),
        "growing": altered(Mining, batch_at=grow),
        "local": Local,
        "clinging": Clinging,
    },
}


def network_with(**attributes):
    """Return a maker of networks with these attributes."""

    def make(in_channels):
        network = Network(in_channels)
        for name, value in attributes.items():
            setattr(network, name, value)
        return network

    return make


def network_that(change):
    """Return a maker of networks with changed features, using a new tensor of noise per network."""

    def make(in_channels):
        noise = torch.randn(4, 1, 1)
        return altered(
            Network,
            forward=lambda self, images: change(Network.forward(self, images), images, noise),
        )(in_channels)

    return make


BACKBONES = {
    "is_a_module_that_says_its_width": {"unsaid": network_with(num_features=None)},
    "features_have_the_stated_width": {"wide": network_with(num_features=5)},
    "is_finite_under_autocast": {
        "overflowing": network_that(lambda features, images, noise: features / 0)
    },
    "gradient_reaches_every_parameter": {"idle": network_with(unused=nn.Linear(2, 2))},
    "evaluates_each_image_alone": {
        "mixing": network_that(lambda features, images, noise: features + images.mean())
    },
    "state_dict_round_trips": {
        "forgetful": network_that(lambda features, images, noise: features + noise)
    },
}


class Exact(Evaluator):
    """The evaluator of dml-eval-rs, correct for labels with groups and lists, ranges and mined
    negatives.
    """

    def __init__(self):
        super().__init__(metrics=["recall@1"], unmatched="zero")


TestExact = suite(EvaluatorContract, Exact)


def exact_with(method, change):
    """Make an `Exact` that changes the arguments of a method, using `change`, before the call."""

    def changed(self, *given, **options):
        given, options = change(*given, **options)
        return getattr(Exact, method)(self, *given, **options)

    return altered(Exact, **{method: changed})


def without(part):
    """Make an `Exact` that ignores a part of `Labels`: groups, or junk."""

    def drop(labels):
        if not isinstance(labels, Labels):
            return labels
        lists = None if labels.ignored is None else (labels.ignored.offsets, labels.ignored.items)
        kept = {"groups": labels.groups, "junk": labels.junk}
        kept[part] = None if part == "groups" else ()
        return Labels(labels.ids, **kept, ignored=lists)

    return exact_with(
        "evaluate",
        lambda embeddings, labels, gallery=None, others=None: (
            (embeddings, drop(labels), gallery, drop(others)),
            {},
        ),
    )


def without_lists(embeddings, labels, *gallery):
    if isinstance(labels, Relevance):
        labels = Relevance(np.zeros(len(labels) + 1, int), np.zeros(0, int))
    return (embeddings, labels, *gallery), {}


def measures(change):
    """Make an evaluator that returns changed evaluations."""
    return altered(
        BySorting, evaluate=lambda self, *arrays: change(BySorting.evaluate(self, *arrays))
    )


def as_json(change):
    """Make an evaluator that returns evaluations with a changed `to_dict`."""

    def changed(figures):
        figures.to_dict = lambda: change(dict(figures))
        return figures

    return measures(changed)


def change_queries(change):
    """Make an evaluator that returns evaluations with changed values per query."""
    return measures(lambda figures: Figures(figures, change(figures.per_query["recall@1"])))


def write(self, embeddings, *arrays):
    embeddings /= 2
    return BySorting.evaluate(self, embeddings, *arrays)


def roll(self, *arguments, **options):
    scores, indices = BySorting.nearest(self, *arguments, **options)
    return np.roll(scores, 1, axis=1), indices


EVALUATORS = {
    "an_evaluation_maps_names_to_values": {
        "numbered": measures(lambda figures: Figures({1: figures["recall@1"]}, {})),
        "worded": measures(lambda figures: Figures({"recall@1": "high"}, {})),
        "endless": measures(lambda figures: Figures({"recall@1": float("nan")}, {})),
        "empty": measures(lambda figures: Figures({}, {})),
        "unmapped": measures(lambda figures: types.SimpleNamespace(**vars(figures))),
    },
    "metrics_are_ready_for_json": {
        "nested": as_json(lambda metrics: metrics | {"recall": {"1": 0.5}}),
        "rounded": as_json(lambda metrics: {"recall@1": round(metrics["recall@1"], 1)}),
        "integer keys": as_json(lambda metrics: metrics | {1: 0.5}),
    },
    "every_query_has_its_values": {
        "means only": change_queries(lambda hits: {"recall@1": hits.mean(keepdims=True)}),
        "other means": change_queries(lambda hits: {"recall@1": 1 - hits}),
        "unnamed": change_queries(lambda hits: {"hits": hits}),
    },
    "the_same_arrays_have_the_same_metrics": {"writing": altered(BySorting, evaluate=write)},
    "the_nearest_come_first": {"unsorted": altered(BySorting, nearest=roll)},
    "a_query_can_leave_itself_out": {
        "selfish": altered(
            BySorting,
            nearest=lambda self, *given, exclude_self=False: BySorting.nearest(self, *given),
        )
    },
    "items_have_a_size": {"weightless": altered(BySorting, bytes_per_item=lambda self, dim: 0)},
    "a_saved_evaluation_is_restored": {
        "lossy": altered(BySorting, restore=lambda self, *saved: Figures({}, {}))
    },
    "groups_and_lists_agree": {
        "groupless": without("groups"),
        "listless": exact_with("evaluate", without_lists),
    },
    "junk_is_excluded": {"junkful": without("junk")},
    "all_items_above_a_similarity_are_found": {
        "boundless": exact_with(
            "within", lambda *given, max_results: (given, {"max_results": 2**60})
        ),
        "lenient": exact_with(
            "within",
            lambda queries, gallery, threshold, **options: (
                (queries, gallery, threshold - 0.5),
                options,
            ),
        ),
    },
    "true_accept_rates_rise_with_the_false_ones": {
        "falling": altered(
            Exact,
            true_accept_rates=lambda self, *given: {
                share: 1 - rate for share, rate in Exact.true_accept_rates(self, *given).items()
            },
        )
    },
    "hard_negatives_are_the_nearest_of_other_classes": {
        "confused": exact_with(
            "hard_negatives", lambda x, labels, k, **options: ((x, labels // 2, k), options)
        ),
        "marginless": exact_with(
            "hard_negatives", lambda *given, below, margin: (given, {"below": below})
        ),
    },
}


class Once(Lines):
    def __init__(self, directory, start_step):
        assert not (directory / "log.txt").exists()
        super().__init__(directory, start_step)


def log_finite(self, step, values):
    assert all(np.isfinite(list(values.values())))


def log_named(self, step, values):
    assert all(name.isidentifier() for name in values)


def close_something(self):
    self.file.flush()
    assert self.file.tell()
    Lines.close(self)


LOGGERS = {
    "values_are_logged_and_the_logger_closed": {"named": altered(Lines, log=log_named)},
    "numbers_that_are_not_finite_are_taken": {"strict": altered(Lines, log=log_finite)},
    "a_run_resumes_into_its_folder": {"once": Once},
    "a_logger_without_values_is_closed": {"eager": altered(Lines, close=close_something)},
}


FAULTS = {
    DatasetContract: DATASETS,
    SamplerContract: SAMPLERS,
    BackboneContract: BACKBONES,
    EvaluatorContract: EVALUATORS,
    LoggerContract: LOGGERS,
}


@pytest.mark.parametrize(
    ("contract", "test", "faulty"),
    [
        pytest.param(contract, test, made, id=f"{contract.__name__}-{test}-{name}")
        for contract, tests in FAULTS.items()
        for test, some in tests.items()
        for name, made in some.items()
    ],
)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_a_fault_is_caught(contract, test, faulty):
    with pytest.raises(AssertionError):
        getattr(suite(contract, faulty)(), f"test_{test}")()
