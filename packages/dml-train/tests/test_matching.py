"""Groups and listed matches: of splits, in a run's folder, in reports, and refused before training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_support.tiny_world import TinyEvaluator

from dml_core import Component, DmlError, GroupedSplit, Registry, Relation, hookimpl
from dml_train.data.held_out_classes import ClassSubset
from dml_train.files import write_json
from dml_train.measure.evaluate import Embedded, evaluate
from dml_train.measure.matching import Matching
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training.matching import check_matching


def lists_of(pairs_QG):
    return np.concatenate([[0], np.cumsum(pairs_QG.sum(axis=1))]), np.nonzero(pairs_QG)[1]


@given(st.data())
def test_matches_and_left_out_items_follow_their_definitions(data):
    queries, alone = data.draw(st.integers(1, 6)), data.draw(st.booleans())
    items = queries if alone else data.draw(st.integers(1, 6))
    random = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    labels_Q = random.integers(0, 3, queries)
    labels_G = labels_Q if alone else random.integers(0, 3, items)
    groups_Q = random.integers(0, 2, queries) if data.draw(st.booleans()) else None
    groups_G = groups_Q if alone else random.integers(0, 2, items)
    ignored_QG = random.random((queries, items)) < 0.3 if data.draw(st.booleans()) else None
    relevant_QG = None
    if groups_Q is None and data.draw(st.booleans()):
        relevant_QG = random.random((queries, items)) < 0.4
    matches_QG = labels_Q[:, None] == labels_G
    left_out_QG = np.eye(queries, dtype=bool) if alone else np.zeros((queries, items), bool)
    if groups_Q is not None:
        left_out_QG |= matches_QG & (groups_Q[:, None] == groups_G)
    if relevant_QG is not None:
        matches_QG = relevant_QG
    if ignored_QG is not None:
        left_out_QG |= ignored_QG
    matching = Matching(
        Embedded(
            np.zeros((queries, 2)),
            labels_Q,
            None if alone else np.zeros((items, 2)),
            None if alone else labels_G,
            groups_Q,
            None if alone or groups_Q is None else groups_G,
            Relation(
                relevant=None if relevant_QG is None else lists_of(relevant_QG),
                ignored=None if ignored_QG is None else lists_of(ignored_QG),
            ),
        )
    )
    every = np.tile(np.arange(items), (queries, 1))
    assert np.array_equal(matching.left_out(np.arange(queries), every), left_out_QG)
    assert np.array_equal(matching.right(np.arange(queries), every), matches_QG)
    assert np.array_equal(matching.matched(), (matches_QG & ~left_out_QG).any(axis=1))
    assert left_out_QG.sum(axis=1).max() <= matching.most_left_out


def test_a_grade_of_0_is_no_match():
    relation = Relation(relevant=(np.array([0, 2, 2]), np.array([0, 1]), np.array([0, 3])))
    matching = Matching(Embedded(np.zeros((2, 1)), np.zeros(2, int), relation=relation))
    assert matching.right(np.arange(2), np.array([[0, 1], [0, 1]])).tolist() == [
        [False, True],
        [False, False],
    ]
    assert matching.matched().tolist() == [True, False]


def test_held_out_classes_keep_the_groups_of_their_items():
    held = ClassSubset(split([0, 1, 2, 1], ["x", "y", "x", "z"]), np.array([1, 2]))
    assert held.groups.tolist() == ["y", "x", "z"]
    assert isinstance(held, GroupedSplit)


def finish(folder: RunFolder, embedded: Embedded) -> None:
    """Write what the end of a run writes."""
    embedded.write(folder)
    write_json(folder.evaluation, {})
    folder.write_manifest()


@pytest.mark.parametrize("separate", [False, True])
def test_a_runs_folder_keeps_groups_and_lists_and_drops_old_ones(tmp_path, separate):
    folder = RunFolder(tmp_path)
    x, labels, names = np.ones((3, 2), np.float32), np.arange(3), np.array(["c1", "c2", "c1"])
    lists = np.array([0, 1, 1, 2]), np.array([2, 0])
    full = Embedded(
        x,
        labels,
        x if separate else None,
        labels if separate else None,
        names,
        names if separate else None,
        Relation(relevant=(*lists, np.array([1, 2])), ignored=lists),
    )
    finish(folder, full)
    found = Embedded.read(folder)
    for name in ("embeddings", "labels", "gallery", "gallery_labels", "groups", "gallery_groups"):
        a, b = getattr(found, name), getattr(full, name)
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)
    assert [a.tolist() for a in found.relation.relevant] == [[0, 1, 1, 2], [2, 0], [1, 2]]
    assert [a.tolist() for a in found.relation.ignored] == [[0, 1, 1, 2], [2, 0]]
    finish(folder, Embedded(x, labels))
    again = Embedded.read(folder)
    assert again.matching() == {}
    assert again.gallery is None
    results = ["embeddings.npy", "evaluation.json", "labels.npy", "manifest.json"]
    assert sorted(file.name for file in tmp_path.iterdir()) == results


def test_a_damaged_file_of_lists_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    relation = Relation(ignored=(np.zeros(3, int), np.zeros(0, int)))
    finish(folder, Embedded(np.ones((2, 2)), np.zeros(2, int), relation=relation))
    folder.relation.write_bytes(folder.relation.read_bytes()[:-40])
    with pytest.raises(
        DmlError, match=r"relation\.npz has \d+ bytes; the manifest says .* Write it again: dml"
    ):
        Embedded.read(folder)


# --- refusals before training ---------------------------------------------------------------------------------


class Related(TinyEvaluator):
    """An evaluator that takes groups and lists, and refuses lists of matches on request."""

    def __init__(self, recall_at: tuple[int, ...] = (1,), seed: int = 0, lists: bool = True) -> None:
        super().__init__(recall_at, seed)
        self.lists = lists

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None, *, groups=None, gallery_groups=None,
                 relevant=None, ignored=None):  # fmt: skip
        if relevant is not None and not self.lists:
            raise ValueError("no lists with these options")
        return super().evaluate(embeddings, labels, gallery, gallery_labels)


class RelatedPlugin:
    @hookimpl
    def dml_evaluators(self):
        yield Component("related", Related, "takes groups and lists")


@pytest.fixture
def registry(tiny_registry):
    tiny_registry.plugins.register(RelatedPlugin(), distribution="related")
    return Registry(tiny_registry.plugins)


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


def dataset(test, gallery=None, **relation):
    made = SimpleNamespace(train=None, test=test, gallery=gallery, in_channels=1)
    if relation:
        made.relation = Relation(**relation)
    return made


OK = np.array([0, 1, 2, 2]), np.array([1, 0])
GROUPED = split([0, 0, 1], [1, 2, 1])


@pytest.mark.parametrize(
    ("evaluation", "data", "message"),
    [
        ({}, dataset(GROUPED), "has groups, which the evaluator 'exact' doesn't take"),
        ({}, dataset(split([0, 0, 1]), ignored=OK), "has relation.ignored, which the evaluator 'exact'"),
        ({"name": "related"}, dataset(GROUPED, relevant=OK), "has groups and relation.relevant"),
        ({"name": "related"}, dataset(GROUPED, split([0, 1])), "only one of the test split and the gallery"),
        (
            {"name": "related"},
            dataset(split([0, 0], [1, 2, 3])),
            r"have shape \(3,\) and dtype int64; expected \(2,\)",
        ),
        ({"name": "related"}, dataset(split([0, 0], [0.5, 1])), r"dtype float64; expected \(2,\) integers"),
        (
            {"name": "related"},
            dataset(split([0, 0], [1, 2]), split([0, 0], ["1", "2"])),
            "of one side of the test split of 'tiny' are integers, and of the other strings",
        ),
        (
            {"name": "related"},
            dataset(split([0, 0, 1], [1, 1, 2])),
            "every match of the test split .* query's group",
        ),
        ({"name": "related"}, dataset(split([0, 0]), relevant=OK), "has 4 offsets for 2 queries"),
        (
            {"name": "related"},
            dataset(split([0, 0, 1]), split([0, 1]), relevant=(OK[0], OK[1] + 1)),
            "from 1 to 2; expected 0 to 1",
        ),
        (
            {"name": "related"},
            dataset(split([0, 0, 1]), relevant=(OK[0][::-1] * 0 + [0, 2, 1, 2], OK[1])),
            "offsets that fall",
        ),
        (
            {"name": "related"},
            dataset(split([0, 0, 1]), relevant=(OK[0] / 1, OK[1])),
            "dtypes float64 and int64; expected integers",
        ),
        (
            {"name": "related"},
            dataset(split([0, 0, 1]), ignored=(OK[0],)),
            "isn't a pair of one-dimensional arrays",
        ),
        (
            {"name": "related", "lists": False},
            dataset(split([0, 0, 1]), relevant=OK),
            "can't evaluate: no lists with these",
        ),
    ],
    ids=[str(case) for case in range(14)],
)
def test_relations_that_would_fail_after_training_are_refused(
    registry, tiny_document, evaluation, data, message
):
    recipe = parse(tiny_document(evaluation=evaluation), registry)
    with pytest.raises(DmlError, match=message):
        check_matching(recipe, registry, data, None)


def test_held_out_classes_are_checked_and_an_unseen_test_split_is_not(registry, tiny_document):
    unseen = {"evaluation": {"test": False, "every": 1}, "validation": {"class_fraction": 0.5}}
    recipe = parse(tiny_document(**unseen), registry)
    check_matching(recipe, registry, dataset(GROUPED), split([0, 0]))
    with pytest.raises(DmlError, match="has groups, which the evaluator 'exact'"):
        check_matching(recipe, registry, dataset(split([0, 0])), GROUPED)
    unseen["evaluation"]["name"] = "related"
    recipe = parse(tiny_document(**unseen), registry)
    check_matching(recipe, registry, dataset(split([0, 0])), GROUPED)
    with pytest.raises(DmlError, match="every match of the held-out classes"):
        check_matching(recipe, registry, dataset(split([0, 0])), split([0, 0], ["a", "a"]))


def test_an_evaluator_without_groups_refuses_embeddings_with_groups():
    embedded = Embedded(np.eye(2), np.zeros(2, int), groups=np.arange(2))
    with pytest.raises(DmlError, match="TinyEvaluator takes no groups, which the data have"):
        evaluate(TinyEvaluator(), embedded)
    assert evaluate(Related(), embedded).to_dict()["recall"] == {"1": 1.0}
    assert evaluate(TinyEvaluator(), replace(embedded, groups=None)).to_dict()["recall"] == {"1": 1.0}
