"""Calls of every function under every option, each with what the slow reference gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import dml_eval_rs as ours
from eval_support import mining_reference, verification_reference
from eval_support import retrieval_reference as reference
from eval_support.path_data import KINDS, codes_of, labels_of, rows_of
from eval_support.peers import run_together
from eval_support.scores_reference import score

DIM = 24
TIES = ("index", "optimistic", "pessimistic", "expected")
# A metric is a sum of a few products, each rounded once.
TOLERANCE = 1e-12

Columns = Mapping[str, np.ndarray]
Lists = list[set[int]]


@dataclass(frozen=True)
class Case:
    """A call, what it should return, and how different both are: `None` if they agree."""

    call: Callable[[], Any]
    expected: Any
    differ: Callable[[Any, Any], str | None]


def listed(lists: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, lists)]), np.array([item for items in lists for item in items], int)


def _differ_in_columns(found: list[Any], expected: list[Columns]) -> str | None:
    for of_call, columns in zip(found, expected, strict=True):
        for name, column in columns.items():
            values = of_call.per_query[name]
            if not np.allclose(values, column, rtol=0, atol=TOLERANCE, equal_nan=True):
                query = int(np.argmax(~np.isclose(values, column, rtol=0, atol=TOLERANCE, equal_nan=True)))
                return f"{name} of query {query} is {values[query]}; expected {column[query]}"
    return None


def _differ(found: Any, expected: Any) -> str | None:
    return None if found == expected else f"found {found}; expected {expected}"


class Data:
    """Rows of both sides, and near items of other classes for each query."""

    def __init__(
        self, kind: str, similarity: str, dtype: Any, n: int, seed: int, gallery: bool, contains_queries: bool
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
        """Choose some of the nearest items of each query, of other classes or of any, and two at random."""
        lists = []
        for q, query in enumerate(self.queries):
            keys = np.array(reference.keys_of(query, self.items, self.similarity))
            of_others = (self.item_labels != self.labels[q]) | (not others)
            order = [int(i) for i in np.argsort(-keys, kind="stable") if of_others[i]]
            lists.append({*order[:most:2], *self.rng.integers(0, len(self.items), 2).tolist()})
        return lists


@dataclass(frozen=True)
class Evaluated:
    """An option of evaluations: the data, and the arguments of both evaluators."""

    kind: str = "decaying"
    similarity: str = "cosine"
    dtype: Any = np.float32
    gallery: bool = False
    indices: bool = False
    ignored: bool = False
    relevant: bool = False
    graded: bool = False
    groups: bool = False
    junk: tuple[int, ...] = ()
    distractors: tuple[int, ...] = ()
    ties: str = "index"
    unmatched: str = "skip"
    metrics: tuple[tuple[str, Any, str], ...] = ()
    how: str = "once"

    def case(self, n: int, seed: int) -> Case:
        """Make the call on n rows."""
        data = Data(self.kind, self.similarity, self.dtype, n, seed, self.gallery, self.indices)
        options: dict[str, Any] = {"recall_at": (1, 3), "ties": self.ties, "unmatched": self.unmatched}
        expected: dict[str, Any] = {"similarity": self.similarity, **options}
        options |= {name: value for name, value, _ in self.metrics}
        expected["metrics"] = [name for _, _, name in self.metrics]
        for name in ("junk", "distractors"):
            if values := getattr(self, name):
                options[name] = expected[name] = values
        labels: Any = data.labels
        gallery_labels: Any = data.gallery_labels
        if self.relevant:
            near = [set(sorted(items)[:5]) for items in data.near(False, 8)]
            relevant = [{i: (i % 3 + 1 if self.graded else 1) for i in items} for items in near]
            grades = [grade for items in relevant for grade in items.values()]
            options["relevant"] = (*listed(relevant), grades) if self.graded else listed(relevant)
            expected["relevant"] = relevant
            labels = gallery_labels = None
        if self.ignored:
            expected["ignored"] = data.near(not self.relevant, 12)
            options["ignored"] = listed(expected["ignored"])
        if self.indices:
            options["indices"] = expected["indices"] = np.where(data.places % 5, data.places, -1)
        if self.groups:
            options["groups"] = expected["groups"] = data.places % 2
            if data.gallery is not None:
                options["gallery_groups"] = expected["gallery_groups"] = np.arange(len(data.gallery)) % 2
        given = (data.queries, labels, data.gallery, gallery_labels)
        return getattr(self, f"_{self.how}")(given, options, expected)

    def _function(self, name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the function for rows or for codes, and the similarity where it takes one."""
        if self.similarity == "hamming" and name == "evaluate":
            return ours.evaluate_codes, {}
        return getattr(ours, name), {"similarity": self.similarity}

    def _once(self, given: Any, options: Any, expected: Any) -> Case:
        call, similarity = self._function("evaluate")
        columns = [reference.evaluate(*given, **expected)]
        return Case(lambda: [call(*given, **similarity, **options)], columns, _differ_in_columns)

    def _rules(self, given: Any, options: Any, expected: Any) -> Case:
        call, similarity = self._function("evaluate_ties")
        options["ties"] = list(TIES)
        columns = [reference.evaluate(*given, **{**expected, "ties": ties}) for ties in TIES]
        return Case(lambda: [*call(*given, **similarity, **options).values()], columns, _differ_in_columns)

    def _levels(self, given: Any, options: Any, expected: Any) -> Case:
        call, similarity = self._function("evaluate_levels")
        queries, labels, gallery, gallery_labels = given
        sides: Any = [
            None if side is None else {"class": side, "superclass": side // 3}
            for side in (labels, gallery_labels)
        ]
        columns = [
            reference.evaluate(
                queries, sides[0][level], gallery, None if gallery is None else sides[1][level], **expected
            )
            for level in sides[0]
        ]
        return Case(
            lambda: [*call(queries, sides[0], gallery, sides[1], **similarity, **options).values()],
            columns,
            _differ_in_columns,
        )

    def _peers(self, given: Any, options: Any, expected: Any) -> Case:
        call, similarity = self._function("evaluate")
        columns = [reference.evaluate(*given, **expected)] * 2
        return Case(
            lambda: run_together(
                2, lambda peer: call(*given, **similarity, **options, peers=peer, threads=1)
            ),
            columns,
            _differ_in_columns,
        )

    def _shards(self, given: Any, options: Any, expected: Any) -> Case:
        call, similarity = self._function("evaluate_shards")
        queries, labels, gallery, gallery_labels = given
        parts = [[x[:30], x[30:]] if x is not None else None for x in (queries, gallery)]
        columns = [reference.evaluate(*given, **expected)]
        return Case(
            lambda: [call(parts[0], labels, parts[1], gallery_labels, block=50, **similarity, **options)],
            columns,
            _differ_in_columns,
        )

    def _blocks(self, given: Any, options: Any, expected: Any) -> Case:
        queries, labels, gallery, gallery_labels = given
        assert gallery is not None
        columns = [reference.evaluate(*given, **expected)]

        def call() -> list[ours.Evaluation]:
            evaluator = ours.StreamingEvaluator(queries, labels, similarity=self.similarity, **options)
            for step in (evaluator.find_positives, evaluator.count_negatives):
                for part in (slice(29, None), slice(0, 29)):
                    step(
                        gallery[part],
                        *([] if gallery_labels is None else [gallery_labels[part]]),
                        first_index=part.start,
                    )
            return [evaluator.result()]

        return Case(call, columns, _differ_in_columns)


_RANKS = (
    ("precision_at", 2, "precision@2"), ("average_precision_at", 3, "average_precision@3"), ("ndcg_at", 4, "ndcg@4"),
    ("recall_share_at", 2, "recall_share@2"), ("reciprocal_rank_at", 2, "reciprocal_rank@2"),
)  # fmt: skip
_ALL_RANKS = (
    ("average_precision", True, "average_precision"),
    ("average_precision", True, "inverse_negative_penalty"),
)
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
    "exclude by index": Evaluated(gallery=True, indices=True),
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
    "levels with lists": Evaluated(how="levels", ignored=True, gallery=True, indices=True),
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
    "blocks": Evaluated(how="blocks", gallery=True, ignored=True, indices=True),
    "codes with lists": Evaluated(similarity="hamming", ignored=True),
}


@dataclass(frozen=True)
class Searched:
    """An option of searches."""

    kind: str = "decaying"
    similarity: str = "cosine"
    dtype: Any = np.float32
    gallery: bool = False
    exclude_self: bool = False
    indices: bool = False
    how: str = "knn"
    k: int = 4
    below: str | None = None

    def case(self, n: int, seed: int) -> Case:
        """Make the call on n rows."""
        data = Data(
            self.kind, self.similarity, self.dtype, n, seed, self.gallery or self.indices, self.indices
        )
        options: dict[str, Any] = {}
        if self.exclude_self:
            options["exclude_self"] = True
        own = np.arange(len(data.queries)) if self.exclude_self else np.full(len(data.queries), -1)
        if self.indices:
            options["indices"] = own = data.places
        return getattr(self, f"_{self.how}")(data, own, options)

    def _nearest(self, data: Data, own: np.ndarray) -> list[list[int]]:
        rows = []
        for query, left_out in zip(data.queries, own):
            keys = reference.keys_of(query, data.items, self.similarity)
            order = sorted(range(len(keys)), key=lambda i: (-keys[i], i))
            rows.append([i for i in order if i != left_out][: self.k])
        return rows

    def _knn(self, data: Data, own: np.ndarray, options: Any) -> Case:
        search: Any = ours.knn
        if self.similarity == "hamming":
            search = ours.knn_codes
        else:
            options["similarity"] = self.similarity
        return Case(
            lambda: search(data.queries, data.gallery, self.k, **options)[1].tolist(),
            self._nearest(data, own),
            _differ,
        )

    def _shards(self, data: Data, own: np.ndarray, options: Any) -> Case:
        parts = [None if x is None else [x[:30], x[30:]] for x in (data.queries, data.gallery)]
        return Case(
            lambda: ours.knn_shards(
                parts[0], parts[1], self.k, block=50, similarity=self.similarity, **options
            )[1].tolist(),
            self._nearest(data, own),
            _differ,
        )

    def _index_recall(self, data: Data, own: np.ndarray, options: Any) -> Case:
        exact = np.array(self._nearest(data, own))
        found = np.where(data.rng.random(exact.shape) < 0.3, -1, exact)
        return Case(
            lambda: ours.index_recall(
                found, data.queries, data.gallery, self.k, similarity=self.similarity, **options
            ).per_query.tolist(),
            ((found >= 0).sum(axis=1) / self.k).tolist(),
            _differ,
        )

    def _range(self, data: Data, own: np.ndarray, options: Any) -> Case:
        scores = np.array([[score(q, g, self.similarity) for g in data.items] for q in data.queries])
        threshold = float(np.sort(scores.ravel())[-5 * len(scores)])
        offsets, indices = [0], []
        for of_query, left_out in zip(scores, own):
            accepted = [g for g, s in enumerate(of_query) if s >= threshold and g != left_out]
            indices += sorted(accepted, key=lambda g: (-of_query[g], g))
            offsets.append(len(indices))
        return Case(
            lambda: [
                part.tolist()
                for part in ours.range_search(
                    data.queries, data.gallery, threshold, similarity=self.similarity, **options
                )[:2]
            ],
            [offsets, indices],
            _differ,
        )

    def _hard_negatives(self, data: Data, own: np.ndarray, options: Any) -> Case:
        expected = mining_reference.hard_negatives(
            data.queries, data.labels, self.k, self.similarity, self.below, 0.0
        )

        def call() -> list[list[int]]:
            found = ours.hard_negatives(
                data.queries, data.labels, self.k, below=self.below, similarity=self.similarity
            )[1]
            return [row[row >= 0].tolist() for row in found]

        return Case(call, expected, _differ)

    def _kmeans(self, data: Data, own: np.ndarray, options: Any) -> Case:
        """Cluster to the end: each row's cluster is that of its nearest centroid."""
        expected = ours.kmeans(data.queries, 6, seed=1)
        labels = reference.nearest(data.queries, expected.centroids, 1, "euclidean", False)[1]
        assert expected.labels.tolist() == [label for (label,) in labels]
        return Case(
            lambda: ours.kmeans(data.queries, 6, seed=1).labels.tolist(), expected.labels.tolist(), _differ
        )


SEARCHES: dict[str, Searched] = {
    "cosine": Searched(),
    "dot": Searched(similarity="dot"),
    "euclidean": Searched(similarity="euclidean"),
    "codes": Searched(similarity="hamming"),
    "float16": Searched(dtype=np.float16),
    "float64": Searched(dtype=np.float64, similarity="euclidean"),
    "one neighbour": Searched(k=1),
    "subspace": Searched(kind="subspace"),
    "offset": Searched(kind="offset", similarity="euclidean"),
    "clusters": Searched(kind="clusters"),
    "duplicates": Searched(kind="duplicates"),
    "shuffled": Searched(kind="shuffled"),
    "exclude self": Searched(exclude_self=True),
    "exclude by index": Searched(indices=True),
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
}


@dataclass(frozen=True)
class Verified:
    """An option of verifications."""

    kind: str = "decaying"
    similarity: str = "cosine"
    dtype: Any = np.float32
    gallery: bool = False
    groups: bool = False
    how: str = "once"

    def case(self, n: int, seed: int) -> Case:
        """Make the call on n rows, with the AUC and without it: other traversals find the thresholds then."""
        data = Data(self.kind, self.similarity, self.dtype, n, seed, self.gallery, False)
        far = (0.5, 0.1, 0.01)
        given = (data.queries, data.labels, data.gallery, data.gallery_labels)
        options: dict[str, Any] = {"far": far}
        groups = gallery_groups = None
        if self.groups:
            groups = options["groups"] = np.arange(len(data.queries)) % 2
            if data.gallery is not None:
                gallery_groups = options["gallery_groups"] = np.arange(len(data.gallery)) % 2
        sides = given
        similarity = self.similarity
        if similarity == "hamming":  # minus the distance of codes is minus the squared distance of their bits
            bits = [None if x is None else np.unpackbits(x, axis=1).astype(np.float32) for x in given[::2]]
            sides, similarity = (bits[0], data.labels, bits[1], data.gallery_labels), "euclidean"
        else:
            options["similarity"] = similarity
        positives, negatives = verification_reference.all_pairs(*sides, groups, gallery_groups, similarity)
        tar = {share: verification_reference.tar_at(share, positives, negatives)[0] for share in far}
        eer = verification_reference.equal_error_rate(positives, negatives)[0]
        auc = verification_reference.area(positives, negatives)
        # The curve turns at the scores of positives only, and at the number after each.
        turns = {*positives, *(math.nextafter(p, math.inf) for p in positives), math.inf, -math.inf}
        expected = ((tar, eer, auc, True), (tar, eer, None, True))
        call: Any = ours.verify_codes if self.similarity == "hamming" else ours.verify

        def measure(**more: Any) -> Any:
            calls = [
                call(*given, metrics=m, **options, **more) for m in (("tar", "eer", "auc"), ("tar", "eer"))
            ]
            roc = [found.roc is None or turns.issuperset(found.roc.threshold.tolist()) for found in calls]
            return tuple((dict(f.tar), f.eer, f.auc, turned) for f, turned in zip(calls, roc, strict=True))

        if self.how == "peers":
            return Case(
                lambda: run_together(2, lambda peer: measure(peers=peer, threads=1)),
                [expected] * 2,
                _differ,
            )
        return Case(measure, expected, _differ)


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
    """Change the data, similarity and dtype of an option; codes stay as they are."""
    if option.similarity == "hamming":
        return option
    return replace(
        option,
        kind=choose(KINDS),
        similarity=choose(("cosine", "dot", "euclidean")),
        dtype=choose((np.float16, np.float32, np.float64)),
    )
