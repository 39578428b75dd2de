"""Calls of all functions under all options, with the slow reference's results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import dml_eval_rs as ours
from eval_support import mining_reference, verification_reference
from eval_support import retrieval_reference as reference
from eval_support.matches import call
from eval_support.path_data import KINDS, codes_of, labels_of, rows_of
from eval_support.peers import run_together
from eval_support.scores_reference import score

DIM = 24
TIES = ("index", "optimistic", "pessimistic", "expected")
# Allow for rounding, since a metric is a sum of a few rounded products.
TOLERANCE = 1e-12

Columns = Mapping[str, np.ndarray]
Lists = list[set[int]]


@dataclass(frozen=True)
class Case:
    """A call, the expected result, and a function that describes how both differ, or returns
    None.
    """

    call: Callable[[], Any]
    expected: Any
    differ: Callable[[Any, Any], str | None]


def _differ_in_columns(found: list[Any], expected: list[Columns]) -> str | None:
    for of_call, columns in zip(found, expected, strict=True):
        for name, column in columns.items():
            values = of_call.per_query[name]
            if not np.allclose(values, column, rtol=0, atol=TOLERANCE, equal_nan=True):
                query = int(
                    np.argmax(~np.isclose(values, column, rtol=0, atol=TOLERANCE, equal_nan=True))
                )
                return f"{name} of query {query} is {values[query]}; expected {column[query]}"
    return None


def _differ(found: Any, expected: Any) -> str | None:
    return None if found == expected else f"found {found}; expected {expected}"


class Data:
    """Rows of both sides, and near items with different labels for queries."""

    def __init__(
        self,
        kind: str,
        similarity: str,
        dtype: Any,
        n: int,
        seed: int,
        gallery: bool,
        contains_queries: bool,
    ) -> None:
        rng = np.random.default_rng(seed)
        labels = labels_of(n)
        if kind == "shuffled":
            labels = rng.permutation(labels)
        x = rows_of(kind, labels, DIM, seed, dtype)
        if similarity == "hamming":
            x = codes_of(x)
        self.similarity, self.rng = similarity, rng
        self.queries, self.labels = x, labels
        self.gallery = self.gallery_labels = None
        self.places = np.arange(n)
        if gallery:
            self.places = np.arange(0, n, 3)
            kept = np.ones(n, bool)
            kept[self.places] = contains_queries
            self.queries, self.labels = x[self.places], labels[self.places]
            self.gallery, self.gallery_labels = x[kept], labels[kept]
        self.items = x if self.gallery is None else self.gallery
        self.item_labels = labels if self.gallery_labels is None else self.gallery_labels

    def near(self, others: bool, most: int) -> Lists:
        """Choose, per query, near items (if `others`, only items with other labels) and two random
        items.
        """
        lists = []
        for q, query in enumerate(self.queries):
            keys = np.array(reference.keys_of(query, self.items, self.similarity))
            of_others = (self.item_labels != self.labels[q]) | (not others)
            order = [int(i) for i in np.argsort(-keys, kind="stable") if of_others[i]]
            lists.append({*order[:most:2], *self.rng.integers(0, len(self.items), 2).tolist()})
        return lists


@dataclass(frozen=True)
class Option:
    """The kind of data, the similarity and the dtype of a call."""

    kind: str = "decaying"
    similarity: str = "cosine"
    dtype: Any = np.float32
    gallery: bool = False


@dataclass(frozen=True)
class Evaluated(Option):
    """An option of evaluations: the data, and the arguments of both evaluators."""

    exclude: bool = False
    ignored: bool = False
    relevant: bool = False
    graded: bool = False
    groups: bool = False
    junk: tuple[int, ...] = ()
    distractors: tuple[int, ...] = ()
    ties: str = "index"
    unmatched: str = "skip"
    metrics: tuple[str, ...] = ()
    how: str = "once"

    def case(self, n: int, seed: int) -> Case:
        """Make the call on n rows."""
        data = Data(self.kind, self.similarity, self.dtype, n, seed, self.gallery, self.exclude)
        options: dict[str, Any] = {
            "metrics": [*STANDARD, *self.metrics], "similarity": self.similarity, "ties": self.ties,
            "unmatched": self.unmatched, "junk": self.junk, "distractors": self.distractors,
        }  # fmt: skip
        labels: Any = data.labels
        gallery_labels: Any = data.gallery_labels
        if self.relevant:
            near = [set(sorted(items)[:5]) for items in data.near(False, 8)]
            options["relevant"] = [
                {i: (i % 3 + 1 if self.graded else 1) for i in items} for items in near
            ]
            labels = gallery_labels = None
        if self.ignored:
            options["ignored"] = data.near(not self.relevant, 12)
        if self.exclude:
            options["exclude"] = np.where(data.places % 5, data.places, -1)
        if self.groups:
            options["groups"] = data.places % 2
            if data.gallery is not None:
                options["gallery_groups"] = np.arange(len(data.gallery)) % 2
        given = (data.queries, labels, data.gallery, gallery_labels)
        measure, expected = getattr(self, f"_{self.how}")(given, options)
        return Case(measure, expected, _differ_in_columns)

    def _once(self, given: Any, options: Any) -> Any:
        return lambda: [call(ours.evaluate, *given, **options)], [
            reference.evaluate(*given, **options)
        ]

    def _rules(self, given: Any, options: Any) -> Any:
        columns = [reference.evaluate(*given, **{**options, "ties": ties}) for ties in TIES]
        return lambda: [
            *call(ours.evaluate_ties, *given, **{**options, "ties": TIES}).values()
        ], columns

    def _levels(self, given: Any, options: Any) -> Any:
        queries, labels, gallery, gallery_labels = given
        sides: Any = [
            None if side is None else {"class": side, "superclass": side // 3}
            for side in (labels, gallery_labels)
        ]
        columns = [
            reference.evaluate(
                queries, of, gallery, None if gallery is None else sides[1][level], **options
            )
            for level, of in sides[0].items()
        ]
        measured = (queries, sides[0], gallery, sides[1])
        return lambda: [*call(ours.evaluate_levels, *measured, **options).values()], columns

    def _peers(self, given: Any, options: Any) -> Any:
        columns = [reference.evaluate(*given, **options)] * 2
        measure = functools.partial(call, ours.evaluate, *given, threads=1, **options)
        return lambda: run_together(2, lambda peer: measure(peers=peer)), columns

    def _shards(self, given: Any, options: Any) -> Any:
        queries, labels, gallery, gallery_labels = given
        parts = [None if x is None else [x[:30], x[30:]] for x in (queries, gallery)]
        measured = (parts[0], labels, parts[1], gallery_labels)
        columns = [reference.evaluate(*given, **options)]
        return lambda: [call(ours.evaluate_shards, *measured, block=50, **options)], columns


STANDARD = ("recall@1", "recall@3", "precision@1", "r_precision", "map@r", "mrr")
_RANKS = ("precision@2", "map@3", "ndcg@4", "ir_recall@2", "mrr@2")
_ALL_RANKS = ("map", "minp")
EVALUATIONS: dict[str, Evaluated] = {
    "cosine": Evaluated(),
    "dot": Evaluated(similarity="dot"),
    "euclidean": Evaluated(similarity="euclidean"),
    "codes": Evaluated(similarity="hamming"),
    "float16": Evaluated(dtype=np.float16),
    "float64": Evaluated(dtype=np.float64),
    "subspace": Evaluated(kind="subspace"),
    "offset": Evaluated(kind="offset", similarity="euclidean"),
    "clusters": Evaluated(kind="clusters"),
    "duplicates": Evaluated(kind="duplicates"),
    "isotropic": Evaluated(kind="isotropic"),
    "gallery": Evaluated(gallery=True),
    "exclude by index": Evaluated(gallery=True, exclude=True),
    "ignored": Evaluated(ignored=True),
    "ignored in a gallery": Evaluated(gallery=True, ignored=True, similarity="euclidean"),
    "relevant": Evaluated(relevant=True),
    "relevant in a gallery": Evaluated(relevant=True, gallery=True, ignored=True),
    "grades": Evaluated(relevant=True, graded=True, gallery=True, metrics=_RANKS),
    "groups": Evaluated(groups=True),
    "groups in a gallery": Evaluated(groups=True, gallery=True, ignored=True),
    "junk": Evaluated(junk=(0,)),
    "junk in a gallery": Evaluated(junk=(2, 5), gallery=True),
    "distractors": Evaluated(distractors=(1, 4), gallery=True, unmatched="zero"),
    "levels": Evaluated(how="levels"),
    "tie rules": Evaluated(how="rules", kind="duplicates"),
    "optimistic": Evaluated(ties="optimistic", kind="duplicates"),
    "pessimistic": Evaluated(ties="pessimistic", kind="duplicates"),
    "expected": Evaluated(ties="expected", kind="duplicates"),
    "first ranks": Evaluated(metrics=_RANKS),
    "all ranks": Evaluated(metrics=_ALL_RANKS),
    "all ranks of lists": Evaluated(metrics=_ALL_RANKS, ignored=True),
    "unmatched": Evaluated(unmatched="zero", gallery=True, distractors=(3,)),
    "peers": Evaluated(how="peers"),
    "peers with lists": Evaluated(how="peers", ignored=True),
    "shards": Evaluated(how="shards"),
    "shards with lists": Evaluated(how="shards", ignored=True, gallery=True),
    "codes with lists": Evaluated(similarity="hamming", ignored=True),
}


@dataclass(frozen=True)
class Searched(Option):
    """An option of searches."""

    exclude_self: bool = False
    exclude: bool = False
    how: str = "knn"
    k: int = 4
    below: str | None = None
    allowed: str | None = None
    relevant: bool = False

    def case(self, n: int, seed: int) -> Case:
        """Make the call on n rows."""
        gallery = self.gallery or self.exclude
        data = Data(self.kind, self.similarity, self.dtype, n, seed, gallery, self.exclude)
        options: dict[str, Any] = {"similarity": self.similarity}
        if self.exclude_self:
            options["exclude_self"] = True
        own = np.arange(len(data.queries)) if self.exclude_self else np.full(len(data.queries), -1)
        if self.exclude:
            options["exclude"] = own = data.places
        if self.allowed:
            options["allowed"] = self._allow(data)[0]
        return getattr(self, f"_{self.how}")(data, own, options)

    def _allow(self, data: Data) -> tuple[Any, Lists]:
        """Choose the items that queries can find, and list them per query."""
        n, n_items = len(data.queries), len(data.items)
        if self.allowed in {"mask", "most"}:  # most items are too many to be copied
            mask = np.arange(n_items) % 5 > (2 if self.allowed == "mask" else 1)
            return mask, [{*np.flatnonzero(mask).tolist()}] * n
        if self.allowed == "labels":
            labels = np.arange(n) % 2, np.arange(n_items) % 2
            sets = [{*np.flatnonzero(labels[1] == of).tolist()} for of in labels[0]]
            return tuple(map(ours.Labels, labels)), sets
        sets = [{i for i in range(n_items) if (i * i + q) % 3} for q in range(n)]
        return (
            np.cumsum([0, *map(len, sets)]),
            np.array([i for of in sets for i in of], np.int64),
        ), sets

    def _can_find(self, data: Data) -> Lists:
        return (
            self._allow(data)[1]
            if self.allowed
            else [{*range(len(data.items))}] * len(data.queries)
        )

    def _nearest(self, data: Data, own: np.ndarray) -> list[list[int]]:
        rows = []
        for query, excluded, usable in zip(data.queries, own, self._can_find(data)):
            keys = reference.keys_of(query, data.items, self.similarity)
            order = sorted(usable, key=lambda i: (-keys[i], i))
            rows.append([i for i in order if i != excluded][: self.k])
        return rows

    def _padded(self, data: Data, own: np.ndarray) -> list[list[int]]:
        return [[*row, *[-1] * (self.k - len(row))] for row in self._nearest(data, own)]

    def _knn(self, data: Data, own: np.ndarray, options: Any) -> Case:
        search = functools.partial(ours.knn, data.queries, data.gallery, self.k, **options)
        return Case(lambda: search()[1].tolist(), self._padded(data, own), _differ)

    def _shards(self, data: Data, own: np.ndarray, options: Any) -> Case:
        parts = [None if x is None else [x[:30], x[30:]] for x in (data.queries, data.gallery)]
        search = functools.partial(ours.knn_shards, *parts, self.k, block=50, **options)
        return Case(lambda: search()[1].tolist(), self._padded(data, own), _differ)

    def _index_recall(self, data: Data, own: np.ndarray, options: Any) -> Case:
        exact = np.array(self._padded(data, own))
        found = np.where(data.rng.random(exact.shape) < 0.3, -1, exact)
        for row, usable in zip(found, self._can_find(data)):
            row[:1] = (
                sorted({*range(len(data.items))} - usable)[:1] or row[:1]
            )  # an item that is not allowed
        measure = functools.partial(
            ours.index_recall, found, data.queries, data.gallery, self.k, **options
        )
        right = [
            np.isin(row[row >= 0], of).sum() / max(1, (of >= 0).sum())
            for row, of in zip(found, exact)
        ]
        return Case(lambda: np.nan_to_num(measure().per_query).tolist(), right, _differ)

    def _range(self, data: Data, own: np.ndarray, options: Any) -> Case:
        scores = np.array([_scores(query, data.items, self.similarity) for query in data.queries])
        threshold = float(np.sort(scores.ravel())[-5 * len(scores)])
        offsets, indices = [0], []
        for of_query, excluded, usable in zip(scores, own, self._can_find(data)):
            accepted = [g for g in usable if of_query[g] >= threshold and g != excluded]
            indices += sorted(accepted, key=lambda g: (-of_query[g], g))
            offsets.append(len(indices))
        # Distances must not exceed the threshold, but similarities must reach it.
        given = -threshold if self.similarity == "hamming" else threshold
        search = functools.partial(ours.range_search, data.queries, data.gallery, given, **options)
        return Case(lambda: [part.tolist() for part in search()[:2]], [offsets, indices], _differ)

    def _hard_negatives(self, data: Data, own: np.ndarray, options: Any) -> Case:
        given: dict[str, Any] = {"below": self.below, **options}
        sides: dict[str, Any] = {"gallery": data.gallery, "gallery_labels": data.gallery_labels}
        listed = (
            [set(sorted(items)[:5]) for items in data.near(False, 8)] if self.relevant else None
        )
        expected = mining_reference.hard_negatives(
            data.queries, data.labels, self.k, self.similarity, self.below, 0.0,
            listed=listed, allowed=self._can_find(data), **sides,
        )  # fmt: skip
        labels: Any = data.labels
        if listed is not None:
            labels = ours.Relevance(
                np.cumsum([0, *map(len, listed)]), [i for of in listed for i in of]
            )
            sides["gallery_labels"] = None

        def call() -> list[list[int]]:
            found = ours.hard_negatives(data.queries, labels, self.k, **sides, **given)[1]
            return [row[row >= 0].tolist() for row in found]

        return Case(call, expected, _differ)

    def _kmeans(self, data: Data, own: np.ndarray, options: Any) -> Case:
        """Cluster until centroids do not move, so that rows must be in the cluster of the nearest
        centroid.
        """
        expected = ours.kmeans(data.queries, 6, seed=1)
        labels = reference.nearest(data.queries, expected.centroids, 1, "euclidean", False)[1]
        assert expected.labels.tolist() == [label for (label,) in labels]
        return Case(
            lambda: ours.kmeans(data.queries, 6, seed=1).labels.tolist(),
            expected.labels.tolist(),
            _differ,
        )


SEARCHES: dict[str, Searched] = {
    "cosine": Searched(),
    "dot": Searched(similarity="dot"),
    "euclidean": Searched(similarity="euclidean"),
    "codes": Searched(similarity="hamming"),
    "float16": Searched(dtype=np.float16),
    "float64": Searched(dtype=np.float64, similarity="euclidean"),
    "bytes": Searched(dtype=np.int8, similarity="dot"),
    "bytes in a gallery": Searched(dtype=np.int8, similarity="euclidean", gallery=True),
    "bytes in a range": Searched(how="range", dtype=np.uint8, similarity="euclidean"),
    "one neighbour": Searched(k=1),
    "subspace": Searched(kind="subspace"),
    "offset": Searched(kind="offset", similarity="euclidean"),
    "clusters": Searched(kind="clusters"),
    "duplicates": Searched(kind="duplicates"),
    "shuffled": Searched(kind="shuffled"),
    "exclude self": Searched(exclude_self=True),
    "exclude by index": Searched(exclude=True),
    "gallery": Searched(gallery=True),
    "shards": Searched(how="shards", exclude_self=True),
    "index recall": Searched(how="index_recall", exclude_self=True),
    "range": Searched(how="range", exclude_self=True),
    "range in a gallery": Searched(how="range", gallery=True, similarity="euclidean"),
    "hard negatives": Searched(how="hard_negatives"),
    "easiest": Searched(how="hard_negatives", below="easiest"),
    "hardest": Searched(how="hard_negatives", below="hardest", similarity="euclidean"),
    "hardest of copies": Searched(how="hard_negatives", below="hardest", kind="duplicates"),
    "k-means": Searched(how="kmeans"),
    "codes in a range": Searched(similarity="hamming", how="range"),
    "codes in a range in a gallery": Searched(similarity="hamming", how="range", gallery=True),
    "codes of an index": Searched(similarity="hamming", how="index_recall", exclude_self=True, k=3),
    "allowed for all": Searched(allowed="mask", exclude_self=True),
    "most items allowed for all": Searched(allowed="most", exclude_self=True),
    "allowed labels": Searched(allowed="labels", exclude_self=True),
    "allowed lists": Searched(allowed="lists", gallery=True, similarity="euclidean"),
    "allowed codes": Searched(allowed="lists", similarity="hamming"),
    "range of allowed items": Searched(how="range", allowed="lists", exclude_self=True),
    "index recall of allowed items": Searched(how="index_recall", allowed="lists", gallery=True),
    "hardest in a gallery": Searched(how="hard_negatives", below="hardest", gallery=True),
    "easiest of lists": Searched(
        how="hard_negatives", below="easiest", relevant=True, allowed="lists"
    ),
    "hard negatives of codes": Searched(similarity="hamming", how="hard_negatives"),
    "hardest of codes": Searched(similarity="hamming", how="hard_negatives", below="hardest"),
}


@dataclass(frozen=True)
class Verified(Option):
    """An option of verifications."""

    groups: bool = False
    how: str = "once"

    def case(self, n: int, seed: int) -> Case:
        """Verify n rows with and without the AUC, because the AUC changes the traversals that find
        thresholds.
        """
        data = Data(self.kind, self.similarity, self.dtype, n, seed, self.gallery, False)
        names = ["tar@far=0.5", "tar@far=0.1", "tar@far=0.01", "eer", "auc"]
        groups = gallery_groups = None
        if self.groups:
            groups = np.arange(len(data.queries)) % 2
            if data.gallery is not None:
                gallery_groups = np.arange(len(data.gallery)) % 2
        given = (data.queries, data.labels, data.gallery, data.gallery_labels)
        sides, similarity = given, self.similarity
        if (
            similarity == "hamming"
        ):  # the Hamming distance is the squared Euclidean distance of bits
            bits = [
                None if x is None else np.unpackbits(x, axis=1).astype(np.float32)
                for x in given[::2]
            ]
            sides, similarity = (bits[0], data.labels, bits[1], data.gallery_labels), "euclidean"
        positives, negatives = verification_reference.all_pairs(
            *sides, groups, gallery_groups, similarity
        )
        expected = {
            name: verification_reference.tar_at(float(name[8:]), positives, negatives)[0]
            for name in names[:3]
        }
        expected["eer"] = verification_reference.equal_error_rate(positives, negatives)[0]
        expected["auc"] = verification_reference.area(positives, negatives)
        # The curve can only turn at positives' scores and the next number after a score.
        turns = {*positives, *(math.nextafter(p, math.inf) for p in positives), math.inf, -math.inf}

        def measure(**more: Any) -> list[dict[str, float]]:
            found = []
            for metrics in (names, names[:-1]):
                options = {"metrics": metrics, "similarity": self.similarity, **more}
                if self.groups:
                    options |= {"groups": groups, "gallery_groups": gallery_groups}
                verified = call(ours.verify, *given, **options)
                found.append(dict(verified))
                assert verified.roc is None or turns.issuperset(verified.roc.threshold.tolist())
            return found

        both = [expected, {name: expected[name] for name in names[:-1]}]
        if self.how == "peers":
            shared = functools.partial(run_together, 2, lambda peer: measure(peers=peer, threads=1))
            return Case(shared, [both] * 2, _differ)
        return Case(measure, both, _differ)


def _scores(query: np.ndarray, items: np.ndarray, similarity: str) -> list[float]:
    if similarity == "hamming":
        return reference.keys_of(query, items, similarity)
    return [score(query, item, similarity) for item in items]


VERIFICATIONS: dict[str, Verified] = {
    "cosine": Verified(),
    "dot": Verified(similarity="dot"),
    "euclidean": Verified(similarity="euclidean"),
    "codes": Verified(similarity="hamming"),
    "float16": Verified(dtype=np.float16),
    "float64": Verified(dtype=np.float64),
    "duplicates": Verified(kind="duplicates"),
    "clusters": Verified(kind="clusters"),
    "gallery": Verified(gallery=True),
    "groups": Verified(groups=True),
    "groups in a gallery": Verified(groups=True, gallery=True),
    "peers": Verified(how="peers"),
}


def varied(option: Any, choose: Callable[[Any], Any]) -> Any:
    """Return the option with other data, similarity and dtype, or unchanged if it measures
    codes.
    """
    if option.similarity == "hamming":
        return option
    takes_bytes = isinstance(option, Searched) and option.how != "kmeans"
    return replace(
        option,
        kind=choose(KINDS),
        similarity=choose(("cosine", "dot", "euclidean")),
        dtype=choose(
            (np.float16, np.float32, np.float64, *([np.int8, np.uint8] if takes_bytes else []))
        ),
    )
