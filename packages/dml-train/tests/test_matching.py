"""Groups and listed matches: in splits, in a run's folder, and checked before training."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from train_support.tiny_world import TinyEvaluator, provide

from dml_core import DmlError, GroupedSplit, Labels, Relevance
from dml_train.data.held_out_classes import ClassSubset
from dml_train.files import write_json
from dml_train.measure.evaluate import Embedded
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training.checks import check_matching


def test_held_out_classes_keep_the_groups_of_their_items():
    held = ClassSubset(split([0, 1, 2, 1], ["x", "y", "x", "z"]), np.array([1, 2]))
    assert held.groups.tolist() == ["y", "x", "z"]
    assert isinstance(held, GroupedSplit)


def finish(folder: RunFolder, embedded: Embedded) -> None:
    """Write the files that should be written when a run ends."""
    embedded.write(folder)
    write_json(folder.evaluation, {})
    folder.write_manifest()


X, NAMES = np.ones((3, 2), np.float32), np.array(["c1", "c2", "c1"])
LISTS = np.array([0, 1, 1, 2]), np.array([2, 0])


@pytest.mark.parametrize(
    "stated",
    [
        {"matches": Labels(np.arange(3), NAMES, junk=7, distractors=[1, 2], ignored=LISTS)},
        {"matches": Relevance(*LISTS, np.array([1, 2]), ignored=LISTS)},
        {"matches": Relevance(*LISTS)},
        {
            "gallery": X,
            "gallery_labels": np.arange(3),
            "matches": Labels(np.arange(3), NAMES),
            "gallery_matches": Labels(np.arange(3), NAMES[::-1]),
        },
        {"gallery": X, "gallery_labels": np.arange(3), "matches": Relevance(*LISTS)},
        {"gallery": X, "gallery_labels": np.arange(3)},
    ],
    ids=["labels", "grades", "lists", "gallery", "lists in a gallery", "plain"],
)
def test_a_runs_folder_keeps_groups_and_lists_and_drops_old_ones(tmp_path, stated):
    folder = RunFolder(tmp_path)
    full = Embedded(X, np.arange(3), **stated)
    finish(folder, full)
    found = Embedded.read(folder)
    for name in ("embeddings", "labels", "gallery", "gallery_labels"):
        a, b = getattr(found, name), getattr(full, name)
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)
    for name in ("matches", "gallery_matches"):
        assert type(getattr(found, name)) is type(getattr(full, name))
    stored, kept = found.list_matches(), full.list_matches()
    assert stored.keys() == kept.keys()
    assert all(np.array_equal(stored[name], kept[name]) for name in kept)
    finish(folder, Embedded(X, np.arange(3)))
    again = Embedded.read(folder)
    assert again.matches is again.gallery is None
    results = ["embeddings.npy", "evaluation.json", "labels.npy", "manifest.json"]
    assert sorted(file.name for file in tmp_path.iterdir()) == results


def test_a_damaged_file_of_lists_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    finish(folder, Embedded(X, np.arange(3), matches=Labels(np.arange(3), ignored=LISTS)))
    folder.matches.write_bytes(folder.matches.read_bytes()[:-40])
    message = r"matches\.npz has \d+ bytes; the manifest says .* Write it again: dml"
    with pytest.raises(DmlError, match=message):
        Embedded.read(folder)


class Matched(TinyEvaluator):
    """An evaluator that takes groups and, unless `lists` is false, lists of matches."""

    takes_matches = True

    def __init__(
        self, metrics: tuple[str, ...] = ("recall@1",), seed: int = 0, lists: bool = True
    ) -> None:
        super().__init__(metrics, seed)
        self.lists = lists

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        if isinstance(labels, Relevance) and not self.lists:
            raise ValueError("no lists with these options")
        ids = labels.ids if isinstance(labels, Labels) else np.zeros(len(embeddings), int)
        return super().evaluate(embeddings, ids, gallery, gallery_labels)


@pytest.fixture
def registry(registry):
    provide(registry, "evaluators", "matched", Matched)
    return registry


def split(labels, groups=None):
    labels = np.array(labels)
    found = SimpleNamespace(labels=labels, class_names=[str(c) for c in range(labels.max() + 1)])
    return _Split(**vars(found), **({} if groups is None else {"groups": np.array(groups)}))


class _Split(SimpleNamespace):
    def __len__(self):
        return len(self.labels)

    def load(self, indices, seeds=None):
        raise NotImplementedError

    def picture(self, index):
        raise NotImplementedError


def dataset(test, gallery=None, matches=None):
    made = SimpleNamespace(train=None, test=test, gallery=gallery, in_channels=1)
    if matches is not None:
        made.matches = matches
    return made


LISTED = Relevance([0, 1, 2, 2], [1, 0])
GROUPED = split([0, 0, 1], [1, 2, 1])
PLAIN = split([0, 0, 1])
MATCHED = {"name": "matched"}


@pytest.mark.parametrize(
    ("evaluation", "data", "message"),
    [
        (
            {},
            dataset(GROUPED),
            "TinyEvaluator only supports labels, but the data have groups or lists of items",
        ),
        (
            MATCHED,
            dataset(GROUPED, matches=LISTED),
            "the splits have groups, and matches is a Relevance",
        ),
        (
            MATCHED,
            dataset(GROUPED, split([0, 1])),
            "the test split of the data set 'tiny': labels have groups, but gallery_labels have "
            "none",
        ),
        (MATCHED, dataset(split([0, 0], [1, 2, 3])), r"groups has shape \(3,\); expected \(2,\)"),
        (MATCHED, dataset(split([0, 0], [0.5, 1])), "groups has dtype float64"),
        (MATCHED, dataset(split([0, 0], [1, 2]), split([0, 0], ["1", "2"])), "groups"),
        (MATCHED, dataset(split([0, 0, 1], [1, 1, 2])), "a match that the rankings don't exclude"),
        (MATCHED, dataset(split([0, 0]), matches=LISTED), "matches contains 3 queries; expected 2"),
        (
            MATCHED,
            dataset(PLAIN, split([0, 1]), Relevance([0, 1, 2, 2], [2, 1])),
            "lists item 2 for query 0; expected indices from 0 to 1",
        ),
        (
            MATCHED,
            dataset(PLAIN, matches=(LISTS, None)),
            "matches is a tuple; expected Labels or Relevance",
        ),
        (
            MATCHED,
            dataset(PLAIN, matches=Labels([0, 1, 1])),
            "matches has labels or groups that differ",
        ),
        (
            MATCHED,
            dataset(PLAIN, matches=Relevance([0] * 4, [])),
            "no query has a match that the rankings",
        ),
        (
            {**MATCHED, "lists": False},
            dataset(PLAIN, matches=LISTED),
            "can't evaluate: no lists with these",
        ),
    ],
    ids=[str(case) for case in range(13)],
)
def test_invalid_matches_are_refused_before_training(
    registry, tiny_document, evaluation, data, message
):
    recipe = parse(tiny_document(evaluation=evaluation), registry)
    with pytest.raises(DmlError, match=message):
        check_matching(recipe, registry, data, None)


@pytest.mark.parametrize(
    "data",
    [
        dataset(GROUPED, GROUPED),
        dataset(
            GROUPED, matches=Labels(GROUPED.labels, GROUPED.groups, ignored=([0, 1, 1, 1], [2]))
        ),
        dataset(PLAIN, split([1, 0]), Labels(PLAIN.labels, distractors=1)),
        dataset(PLAIN, matches=LISTED),
    ],
)
def test_matches_that_fit_the_splits_are_taken(registry, tiny_document, data):
    check_matching(parse(tiny_document(evaluation=MATCHED), registry), registry, data, None)


def test_held_out_classes_are_checked_and_an_unseen_test_split_is_not(registry, tiny_document):
    unseen = {
        "evaluation": {"test": False, "every": 1},
        "validation": {"class_fraction": 0.5, "metric": "recall@1"},
    }
    recipe = parse(tiny_document(**unseen), registry)
    check_matching(recipe, registry, dataset(GROUPED), split([0, 0]))
    with pytest.raises(DmlError, match="TinyEvaluator only supports labels"):
        check_matching(recipe, registry, dataset(split([0, 0])), GROUPED)
    unseen["evaluation"]["name"] = "matched"
    recipe = parse(tiny_document(**unseen), registry)
    check_matching(recipe, registry, dataset(split([0, 0])), GROUPED)
    with pytest.raises(
        DmlError, match="the held-out classes of the data set 'tiny': no query has a match"
    ):
        check_matching(recipe, registry, dataset(split([0, 0])), split([0, 0], ["a", "a"]))
