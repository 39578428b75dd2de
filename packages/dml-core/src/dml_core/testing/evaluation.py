"""Contracts of evaluators and loggers. Shapes: `Q` queries, `G` gallery, `D` dimension."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_core import Labels, Relevance
from dml_core.protocols.evaluation import (
    Evaluation,
    Evaluator,
    MiningEvaluator,
    RangeEvaluator,
    RestoringEvaluator,
    RunLogger,
    VerifyingEvaluator,
    takes_matches,
)

DIM = 8


class EvaluatorContract(ABC):
    """The properties of evaluators that training, search and reports need."""

    @abstractmethod
    def make_evaluator(self) -> Evaluator:
        """Make an evaluator with default settings."""

    def test_an_evaluation_maps_names_to_values(self) -> None:
        """An evaluation must be a `Mapping` from at least one name to a finite float."""
        for evaluation in self._evaluations():
            assert isinstance(evaluation, Mapping), f"{type(evaluation).__name__} is no Mapping"
            names = list(evaluation)
            assert names, "the evaluation contains no metric"
            assert len(evaluation) == len(names) == len({*names}), (
                f"{len(evaluation)} metrics, names {names}"
            )
            assert all(name in evaluation for name in names), f"some of {names} are missing"
            assert "no such metric" not in evaluation, "the evaluation contains 'no such metric'"
            for name, value in evaluation.items():
                assert isinstance(name, str), f"{name!r} names a metric; expected a string"
                assert isinstance(value, float), f"{name} is {value!r}; expected a float"
                assert math.isfinite(value), f"{name} is {value}; expected a finite number"

    def test_metrics_are_ready_for_json(self) -> None:
        """`to_dict` must contain all metrics by name, be flat, and not change when saved as
        JSON.
        """
        for evaluation in self._evaluations():
            metrics = evaluation.to_dict()
            assert json.loads(json.dumps(metrics)) == metrics, (
                f"{metrics} changes when it is saved as JSON"
            )
            differing = [name for name, value in evaluation.items() if metrics.get(name) != value]
            assert not differing, f"to_dict has other values of {differing} than the evaluation"
            nested = [name for name, value in metrics.items() if isinstance(value, dict | list)]
            assert not nested, f"{nested} hold several values; expected one value for each name"

    def test_every_query_has_its_values(self) -> None:
        """`per_query` must map names of metrics to float64 arrays (Q,); the means must be the
        metrics.
        """
        queries = len(self._data()[1])
        for evaluation in self._evaluations():
            for name, values in evaluation.per_query.items():
                assert name in evaluation, (
                    f"per_query has {name!r}, which is none of {[*evaluation]}"
                )
                assert values.shape == (queries,), (
                    f"per_query[{name!r}]: shape {values.shape}; expected ({queries},)"
                )
                assert values.dtype == np.float64, (
                    f"per_query[{name!r}]: {values.dtype}; expected float64"
                )
                mean = float(np.nanmean(values))
                assert math.isclose(mean, evaluation[name], rel_tol=1e-6, abs_tol=1e-9), (
                    f"{name} is {evaluation[name]}; expected the mean over the queries, {mean}"
                )

    def test_the_same_arrays_have_the_same_metrics(self) -> None:
        """A second evaluator must return the same numbers, and the arrays must not change."""
        embeddings, labels = self._data()
        before = embeddings.copy(), labels.copy()
        first, second = (
            self.make_evaluator().evaluate(embeddings, labels).to_dict() for _ in range(2)
        )
        assert first == second, f"first {first}, then {second}"
        assert np.array_equal(embeddings, before[0]), "the evaluator wrote to the embeddings"
        assert np.array_equal(labels, before[1]), "the evaluator wrote to the labels"

    def test_the_nearest_come_first(self) -> None:
        """`nearest` must return sorted scores and distinct gallery indices, both (Q, k)."""
        embeddings, _ = self._data()
        scores, indices = self.make_evaluator().nearest(embeddings[:5], embeddings, 4)
        assert scores.shape == indices.shape == (5, 4), (
            f"scores {scores.shape} and indices {indices.shape}"
        )
        steps = np.diff(scores.astype(np.float64), axis=1)
        assert (steps <= 0).all() or (steps >= 0).all(), "the scores of a row aren't sorted"
        assert 0 <= indices.min() <= indices.max() < len(embeddings), (
            f"indices reach {indices.max()}"
        )
        assert all(len(set(row)) == 4 for row in indices.tolist()), "an item is found twice"

    def test_a_query_can_leave_itself_out(self) -> None:
        """With `exclude_self`, query i must not find row i."""
        embeddings, _ = self._data()
        _, indices = self.make_evaluator().nearest(embeddings, embeddings, 3, exclude_self=True)
        assert not (indices == np.arange(len(embeddings))[:, None]).any(), "a query found itself"

    def test_items_have_a_size(self) -> None:
        """`bytes_per_item` must be a positive integer."""
        size = self.make_evaluator().bytes_per_item(DIM)
        assert isinstance(size, int), f"bytes_per_item is {size!r}; expected an integer"
        assert size > 0, f"bytes_per_item is {size}; expected more than 0"

    def test_a_saved_evaluation_is_restored(self) -> None:
        """A `RestoringEvaluator` must rebuild an evaluation, given the JSON and the arrays."""
        evaluator = self.make_evaluator()
        if not isinstance(evaluator, RestoringEvaluator):
            return
        evaluation = evaluator.evaluate(*self._data())
        restored = evaluator.restore(
            json.loads(json.dumps(evaluation.to_dict())), dict(evaluation.per_query)
        )
        assert restored.to_dict() == evaluation.to_dict(), "the restored evaluation differs"
        assert dict(restored) == dict(evaluation), "the restored metrics differ"

    def test_groups_and_lists_agree(self) -> None:
        """A `MatchesEvaluator` must exclude items with the query's class and group, like items
        listed in `ignored`.
        """
        evaluator = self.make_evaluator()
        if not takes_matches(evaluator):
            return
        embeddings, labels = self._data()
        groups = np.arange(len(labels)) % 2
        same_QG = labels[:, None] == labels
        excluded_QG = same_QG & (groups[:, None] == groups)
        for reverse in (False, True):
            order = slice(None, None, -1) if reverse else slice(None)
            gallery = embeddings[::-1] + 0.1 if reverse else None
            items = labels[::-1] if reverse else None
            grouped = evaluator.evaluate(
                embeddings,
                Labels(labels, groups),
                gallery,
                None if items is None else Labels(items, groups[::-1]),
            )
            ignored = lists(excluded_QG[:, order])
            listed = evaluator.evaluate(embeddings, Labels(labels, ignored=ignored), gallery, items)
            matches = Relevance(*lists(same_QG[:, order]), ignored=ignored)
            both = evaluator.evaluate(embeddings, matches, gallery)
            plain = evaluator.evaluate(embeddings, labels, gallery, items)
            assert grouped.to_dict() == listed.to_dict(), "groups and the same ignored lists differ"
            assert both.to_dict() == listed.to_dict(), (
                "labels and the same matches in a Relevance differ"
            )
            assert grouped.to_dict() != plain.to_dict(), "groups change nothing"

    def test_junk_is_excluded(self) -> None:
        """A `MatchesEvaluator` must return the same metrics as if items labelled as junk were
        absent.
        """
        evaluator = self.make_evaluator()
        if not takes_matches(evaluator):
            return
        embeddings, labels = self._data()
        gallery, items = embeddings[::-1] + 0.1, labels[::-1]
        junk = int(items[0])
        marked = evaluator.evaluate(embeddings, labels, gallery, Labels(items, junk=junk))
        without = evaluator.evaluate(
            embeddings, labels, gallery[items != junk], items[items != junk]
        )
        assert dict(marked) == dict(without), "junk changes the metrics of the other items"

    def test_all_items_above_a_similarity_are_found(self) -> None:
        """A `RangeEvaluator` must find the items that `nearest` finds first, and raise above
        `max_results`.
        """
        evaluator = self.make_evaluator()
        if not isinstance(evaluator, RangeEvaluator):
            return
        embeddings, _ = self._data()
        queries, count = embeddings[:5], len(embeddings)
        scores, nearest = evaluator.nearest(queries, embeddings, count)
        middle = scores[0, count // 2 - 1 : count // 2 + 1]
        threshold = float(middle.mean(dtype=np.float64))  # between items
        sign = _sign_of(scores)
        offsets, indices, similarities = evaluator.within(
            queries, embeddings, threshold, max_results=5 * count
        )
        assert offsets.tolist()[-1] == len(indices) == len(similarities), (
            "offsets must end at len(indices)"
        )
        for query, row in enumerate(nearest):
            found = indices[offsets[query] : offsets[query + 1]]
            expected = int((sign * scores[query] >= sign * threshold).sum())
            assert np.array_equal(found, row[:expected]), (
                f"query {query}: {found}; expected {row[:expected]}"
            )
        with _expect_value_error("more than max_results items were returned"):
            evaluator.within(queries, embeddings, threshold, max_results=1)

    def test_true_accept_rates_rise_with_the_false_ones(self) -> None:
        """A `VerifyingEvaluator` must return shares that rise with the FAR, for any order of the
        items.
        """
        evaluator = self.make_evaluator()
        if not isinstance(evaluator, VerifyingEvaluator):
            return
        embeddings, labels = self._data()
        far = [0.05, 0.2, 0.5]
        rates = evaluator.true_accept_rates(far, embeddings, labels)
        values = [rates[share] for share in far]
        assert all(0 <= value <= 1 for value in values), f"rates are {values}; expected shares"
        assert values == sorted(values), f"rates are {values}; expected them to rise with the FAR"
        order = np.random.default_rng(0).permutation(len(labels))
        assert dict(evaluator.true_accept_rates(far, embeddings[order], labels[order])) == dict(
            rates
        )
        with _expect_value_error("items of a single class were accepted"):
            evaluator.true_accept_rates(far, embeddings, np.zeros(len(labels), np.int64))

    def test_hard_negatives_are_the_nearest_of_other_classes(self) -> None:
        """A `MiningEvaluator` must find the nearest items of other classes; with `below`, those
        below a positive.
        """
        evaluator = self.make_evaluator()
        if not isinstance(evaluator, MiningEvaluator):
            return
        embeddings, labels = self._data()
        count = len(labels)
        scores, nearest = evaluator.nearest(embeddings, embeddings, count - 1, exclude_self=True)
        scores = _sign_of(scores) * scores.astype(np.float64)
        bounds: dict[Literal["hardest", "easiest"] | None, npt.NDArray[np.float64]] = {
            None: np.full(count, np.inf)
        }
        positive = labels[nearest] == labels[:, None]
        bounds["hardest"] = np.where(positive, scores, np.inf).min(axis=1) - 0.25
        bounds["easiest"] = np.where(positive, scores, -np.inf).max(axis=1) - 0.25
        for below, bound in bounds.items():
            margin = 0.0 if below is None else 0.25
            similarities, found = evaluator.hard_negatives(
                embeddings, labels, 4, below=below, margin=margin
            )
            assert similarities.shape == found.shape == (count, 4), (
                f"indices have shape {found.shape}"
            )
            for item in range(count):
                wanted = nearest[item][~positive[item] & (scores[item] < bound[item])][:4]
                assert np.array_equal(found[item][found[item] >= 0], wanted), (
                    f"item {item} below {below}: {found[item]}; expected {wanted}"
                )

    def _evaluations(self) -> list[Evaluation]:
        """Evaluate queries that search each other, and queries that search a gallery."""
        embeddings, labels = self._data()
        evaluator = self.make_evaluator()
        with_gallery = evaluator.evaluate(embeddings, labels, embeddings[::-1] + 0.1, labels[::-1])
        return [evaluator.evaluate(embeddings, labels), with_gallery]

    def _data(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        labels = np.repeat(np.arange(6), 5)
        embeddings = (
            np.random.default_rng(0).normal(size=(len(labels), DIM)) + 2 * np.eye(6, DIM)[labels]
        )
        return embeddings.astype(np.float32), labels


class LoggerContract(ABC):
    """The properties of loggers that a run needs, also when it is resumed."""

    @abstractmethod
    def make_logger(self, directory: Path, start_step: int) -> RunLogger:
        """Make a logger for a run's folder, when `start_step` steps have been logged before."""

    def test_values_are_logged_and_the_logger_closed(self) -> None:
        """`log` must take values with any names, and `close` must end logging."""
        self._log(
            {"loss": 0.3, "evaluation/recall@1": 0.5, "time/images_per_second": 3.0}, range(1, 4)
        )

    def test_numbers_that_are_not_finite_are_taken(self) -> None:
        """Infinite and NaN values must be accepted, since a loss scaler skips steps with such
        gradient norms.
        """
        self._log({"gradient_norm": math.inf, "loss": math.nan}, range(1, 2))

    def test_a_run_resumes_into_its_folder(self) -> None:
        """A new logger must continue in the folder of an earlier logger, from a step that was
        already logged.
        """
        self._log({"loss": 1.0}, range(1, 4), range(3, 6), range(3, 6))

    def test_a_logger_without_values_is_closed(self) -> None:
        """A logger must close without values, since a run can fail before the first step."""
        self._log({}, range(1, 1))

    def _log(self, values: Mapping[str, float], *runs: range) -> None:
        """Log these values in a single folder, with a new logger per run."""
        with TemporaryDirectory() as folder:
            for steps in runs:
                logger = self.make_logger(Path(folder), steps.start - 1)
                for step in steps:
                    logger.log(step, values)
                logger.close()


@contextmanager
def _expect_value_error(otherwise: str) -> Iterator[None]:
    """Raise an AssertionError with this message if the block doesn't raise a ValueError."""
    try:
        yield
    except ValueError:
        return
    raise AssertionError(otherwise)


def _sign_of(scores: npt.NDArray[Any]) -> int:
    """Return 1 if scores are similarities, which fall along a row of nearest items, or -1 if they
    are distances.
    """
    return 1 if scores[0, 0] >= scores[0, -1] else -1


def lists(pairs_QG: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Convert a matrix of pairs to a list of items per query: offsets (Q + 1,) and indices."""
    offsets = np.concatenate([[0], np.cumsum(pairs_QG.sum(axis=1))]).astype(np.int64)
    return offsets, np.nonzero(pairs_QG)[1].astype(np.int64)
