"""The parts of reports: the map, curves, classes, thumbnails."""

from __future__ import annotations

import base64
import io
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from train_support.tiny_world import TinyEvaluator

from dml_core import Labels, Relevance
from dml_train.measure.evaluate import Embedded
from dml_train.measure.listing import list_metrics
from dml_train.report import diagrams
from dml_train.report.diagrams import draw_curves, draw_recall_by_size, group_by_size
from dml_train.report.finished import EvaluatedEmbeddings
from dml_train.report.maps import choose_items, draw_map, draw_picture_map, tsne
from dml_train.report.rendering import make_thumbnail
from dml_train.report.retrieval import NearestNeighbours


@settings(deadline=None, max_examples=60)
@given(data=st.data(), alone=st.booleans())
def test_class_recalls_are_those_of_a_plain_count(data, alone):
    number = data.draw(st.integers(2, 14))
    labels = data.draw(arrays(np.int64, number, elements=st.integers(0, 4)))
    gallery_labels = labels if alone else data.draw(arrays(np.int64, 6, elements=st.integers(0, 4)))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    queries, gallery = random.normal(size=(number, 3)), random.normal(size=(len(gallery_labels), 3))
    embedded = (
        Embedded(queries, labels) if alone else Embedded(queries, labels, gallery, gallery_labels)
    )
    neighbours = NearestNeighbours.find(TinyEvaluator(), embedded)

    expected = {}
    for q in range(number):
        others = [g for g in range(len(gallery_labels)) if not (alone and g == q)]
        if not any(gallery_labels[g] == labels[q] for g in others):
            continue
        space = queries if alone else gallery
        nearest = max(others, key=lambda g: space[g] @ queries[q] / np.linalg.norm(space[g]))
        expected.setdefault(int(labels[q]), []).append(bool(gallery_labels[nearest] == labels[q]))
    wrong = {label: sum(right) / len(right) for label, right in expected.items() if not all(right)}
    worst = neighbours.worst_classes()
    assert {w.label: w.recall for w in worst} == wrong
    assert [w.recall for w in worst] == sorted(w.recall for w in worst)
    for w in worst:
        assert w.items == len(expected[w.label])
        assert labels[w.query] == w.label
        assert 1 <= w.times <= w.items - sum(expected[w.label])
        assert gallery_labels[w.confused_with] != w.label
    for kind in (True, False):
        for example in neighbours.examples(kind):
            assert example.right[0] is kind
    sizes, recalls = neighbours.class_recalls()
    assert sizes.tolist() == [int((gallery_labels == label).sum()) for label in sorted(expected)]
    assert recalls.tolist() == [
        sum(expected[label]) / len(expected[label]) for label in sorted(expected)
    ]


@settings(deadline=None)
@given(
    classes=st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1)), min_size=1, max_size=40),
)
def test_every_class_is_in_one_group_of_its_size(classes):
    sizes, recalls = (np.array(column) for column in zip(*classes))
    bins = group_by_size(sizes, recalls)
    assert 1 <= len(bins) <= 6
    assert sum(b.classes for b in bins) == len(classes)
    assert all(before.high < after.low for before, after in itertools.pairwise(bins))
    for b in bins:
        mine = recalls[(sizes >= b.low) & (sizes <= b.high)]
        assert b.classes == len(mine)
        assert b.recall == pytest.approx(mine.mean())  # the order of the sum may differ
        assert b.worst == mine.min()


def test_recall_by_size_is_described_in_words_on_a_logarithmic_axis():
    sizes, recalls = np.array([1, 2, 2, 900]), np.array([0.0, 0.5, 1.0, 1.0])
    figure = draw_recall_by_size(sizes, recalls, group_by_size(sizes, recalls))
    assert "from 0.000 for the smallest to 1.000 for the largest" in figure.alt
    assert group_by_size(sizes[:0], recalls[:0]) == []


def test_separate_classes_are_separate_on_the_map():
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 30)
    points = tsne(10 * np.eye(5)[labels] + random.normal(size=(150, 5)))
    assert np.abs(points).max() == 1.0
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(axis=1)] == labels).all()


def test_the_map_is_deterministic_and_ignores_the_embeddings_norm():
    embeddings = np.random.default_rng(0).normal(size=(60, 4))
    points = tsne(embeddings)
    np.testing.assert_array_equal(tsne(embeddings), points)
    np.testing.assert_array_equal(
        tsne(embeddings * 4), points
    )  # a power of 2 keeps the bits of directions


@pytest.mark.parametrize(
    "embeddings",
    [
        np.ones((3, 4)),
        np.ones((40, 4)),
        np.array([[1.0], [-1.0]]),
        np.tile([[1.0], [-1.0]], (10, 1)),
        np.zeros((2, 2)),
        np.ones((1, 3)),
    ],
    ids=lambda e: f"{e.shape[0]}x{e.shape[1]}",
)
def test_degenerate_embeddings_have_a_map(embeddings):
    points = tsne(embeddings)
    assert points.shape == (len(embeddings), 2)
    assert np.isfinite(points).all()
    assert np.abs(points).max() <= 1.0
    labels = np.zeros(len(points), dtype=np.int64)
    assert draw_map(points, labels, {0: "the only one"}, "all").alt.endswith("marked: the only one")
    assert draw_picture_map(points, lambda i: np.zeros((4, 4, 3), dtype=np.uint8)).alt


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.one_of(
        st.lists(st.integers(1, 30), min_size=1, max_size=400),
        st.lists(st.integers(1, 9000), min_size=1, max_size=6),
    ),
    seed=st.integers(0, 99),
)
def test_the_map_shows_all_items_or_a_few_thousand_of_whole_classes(sizes, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    chosen = choose_items(labels)
    assert (np.diff(chosen) > 0).all()
    if len(labels) <= 2500:
        assert len(chosen) == len(labels)
        return
    assert 100 <= len(chosen) <= 5000
    counts = np.bincount(labels[chosen], minlength=len(sizes))
    for count, size in zip(counts[counts > 0], np.array(sizes)[counts > 0]):
        assert count == size or count >= 40


def test_long_curves_are_means_of_equal_intervals():
    lines = [{"step": s, "loss": float(s)} for s in range(1, 1001)] + [
        {"step": 1000, "evaluation/recall@1": 0.5}
    ]
    (figure,) = draw_curves({"a": lines})  # a single evaluation does not make a curve
    assert figure.caption == "loss, means of 3 steps: from 1 to 1000."
    assert figure.key == []
    assert draw_curves({"a": []}) == []


def test_a_non_finite_value_leaves_no_gap_in_its_curve():
    values = [1.0, None, 3.0, *[2.0] * 2000]
    (figure,) = draw_curves(
        {"a": [{"step": step, "gradient_norm": value} for step, value in enumerate(values)]}
    )
    (plain,) = draw_curves(
        {"a": [{"step": s, "gradient_norm": v} for s, v in enumerate(values) if v is not None]}
    )
    assert figure == plain


def test_curves_of_several_runs_share_a_diagram_with_a_key():
    runs = {
        "a": [{"step": s, "loss": 4.0 / s} for s in (1, 2)],
        "b": [{"step": s, "loss": 6.0 / s, "evaluation/recall@1": 0.1} for s in (1, 2, 3)],
        "c": [{"step": 1, "loss": 9.0}],
    }
    loss, recall = draw_curves(runs)
    assert loss.caption == "loss: a from 4 to 2; b from 6 to 2."
    assert [name for _, _, name in loss.key] == ["a", "b"]
    assert recall.caption == "Recall@1: b from 0.1 to 0.1."
    assert recall.key[0] == loss.key[1]  # a run's key must be the same in all diagrams


def test_curves_have_readable_names_and_counts_have_no_curve():
    names = ("evaluation/map@r", "validation/recall@10", "evaluation/n_queries", "loss.alpha")
    names += (
        "evaluation/recall@1",
        "evaluation/precision@1",
        "evaluation/n_gallery",
    )  # P@1 equals R@1
    lines = [{"step": step, **dict.fromkeys(names, 1.0)} for step in (1, 2)]
    titles = [figure.caption.partition(":")[0] for figure in draw_curves({"a": lines})]
    assert titles == ["MAP@R", "Recall@10 of the held-out classes", "loss.alpha", "Recall@1"]


def test_thumbnails_are_small_and_drawings_stay_exact():
    drawing = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    kept = Image.open(io.BytesIO(base64.b64decode(make_thumbnail(drawing).partition(",")[2])))
    np.testing.assert_array_equal(np.asarray(kept), drawing)
    photograph = np.zeros((600, 300, 3), dtype=np.uint8)
    small = Image.open(io.BytesIO(base64.b64decode(make_thumbnail(photograph).partition(",")[2])))
    assert small.size == (48, 96)


def test_a_list_of_metrics_repeats_nothing_and_has_no_k_beyond_the_gallery():
    result = {
        "recall@1": 0.5,
        "recall@100": 0.9,
        "recall@1000": 1.0,
        "precision@1": 0.5,
        "map@r": 0.4,
    }
    result |= {"n_gallery": 400, "prefixes": {}}
    assert [metric.name for metric in list_metrics(result)] == ["recall@1", "recall@100", "map@r"]
    del result["recall@1"], result["recall@100"]
    assert [metric.title for metric in list_metrics(result)] == [
        "Recall@1000",
        "Precision@1",
        "MAP@R",
    ]


class Verifier(TinyEvaluator):
    """An evaluator with given ranks; the TAR is the root of the FAR."""

    def __init__(self, ranks, *, refuses=False):
        super().__init__()
        self.reciprocal = np.array([1 / rank for rank in ranks])
        self.refuses = refuses
        self.asked = {}

    def true_accept_rates(self, far, embeddings, labels, gallery=None, gallery_labels=None):
        if self.refuses:
            raise ValueError("no pair is negative")
        self.asked = {"far": far, "labels": labels}
        return {share: share**0.5 for share in far}


def measured_run(evaluator, **embedded):
    labels = np.arange(40) % 8
    evaluation = SimpleNamespace(per_query={"mrr": evaluator.reciprocal})
    test = EvaluatedEmbeddings(
        Embedded(np.zeros((40, 2)), labels, **embedded), evaluator, evaluation
    )
    result = {"recall@1": 0.25, "recall@4": 0.75, "recall@1000": 1.0, "ir_recall@4": 0.1}
    return SimpleNamespace(test=test, result=result)


def test_recall_is_drawn_between_the_measured_ks_from_the_ranks():
    run = measured_run(Verifier([1, 2, 4, 30]))
    recall = diagrams._recall_by_k(run.test, {1: 0.25, 4: 0.75, 1000: 1.0})
    assert [recall[k] for k in (1, 2, 3, 4, 29, 30, 40)] == [0.25, 0.5, 0.5, 0.75, 0.75, 1, 1]
    assert max(recall) == 40  # the number of items, although the largest measured K is 1000
    run.test.evaluation.per_query["mrr"] = np.array([1, np.nan, 0.5, 0])
    assert diagrams._recall_by_k(run.test, {1: 0.3, 2: 0.6}) == {1: 1 / 3, 2: 2 / 3}
    # Means over the orders of tied items are not ranks.
    run.test.evaluation.per_query["mrr"] = np.array([1, 0.75])
    assert diagrams._recall_by_k(run.test, {1: 0.3, 2: 0.6}) == {1: 0.3, 2: 0.6}


def test_the_roc_begins_at_one_pair_and_is_told_in_words():
    verifier = Verifier([1, 2, 4, 30])
    matches = Labels(np.arange(40) % 8, np.arange(40) % 2)
    drawn = diagrams.draw_accuracy(measured_run(verifier, matches=matches))
    assert verifier.asked["far"][0] == pytest.approx(1 / 780)
    assert verifier.asked["labels"] is matches
    recall, roc = drawn.figures
    assert "0.2500 at 1, 0.7500 at 4" in recall.caption
    assert "0.1000 at 0.01, 0.3162 at 0.1" in roc.caption
    assert "logarithmic axis" in roc.alt
    assert drawn.note == ""


def test_there_is_no_roc_of_listed_matches_of_other_evaluators_or_without_pairs():
    lists = np.arange(41), np.arange(40)
    for matches in (Relevance(*lists), Labels(np.arange(40) % 8, ignored=lists), None):
        run = measured_run(Verifier([1, 2]), matches=matches)
        run.test.evaluator.refuses = True
        drawn = diagrams.draw_accuracy(run)
        assert len(drawn.figures) == 1
        assert drawn.note == ("No ROC curve: no pair is negative." if matches is None else "")
    plain = measured_run(Verifier([1]))
    plain = SimpleNamespace(
        test=replace(plain.test, evaluator=TinyEvaluator()), result={"recall@1": 0.5}
    )
    plain.test.evaluation.per_query.clear()
    assert diagrams.draw_accuracy(plain) is None
    assert diagrams.draw_accuracy(SimpleNamespace(test=None, result={})) is None
