"""Calls of the evaluator with the slow reference's arguments, converted to `Labels` or a
`Relevance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dml_eval_rs import Labels, Relevance

T = TypeVar("T")


def listed(lists: Iterable[Iterable[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets and items of the queries' lists."""
    items = [list(of_query) for of_query in lists]
    return np.cumsum([0, *map(len, items)]), np.array(
        [item for of_query in items for item in of_query], int
    )


def relevance(matches: Sequence[Mapping[int, float]], ignored: Any = None) -> Relevance:
    """List the matches of queries in the order of the mappings; use grades if any grade is not
    1.
    """
    grades = [grade for of_query in matches for grade in of_query.values()]
    is_graded = any(grade != 1 for grade in grades)
    return Relevance(*listed(matches), grades if is_graded else None, ignored=ignored)


def call(
    function: Callable[..., T],
    embeddings: Any,
    labels: Any,
    gallery: Any = None,
    gallery_labels: Any = None,
    *,
    groups: Any = None,
    gallery_groups: Any = None,
    relevant: Any = None,
    ignored: Any = None,
    junk: Any = (),
    distractors: Any = (),
    **options: Any,
) -> T:
    """Call `evaluate`, or a similar function, given the reference's arguments."""
    lists = None if ignored is None else listed(ignored)
    if relevant is not None:
        return function(embeddings, relevance(relevant, lists), gallery, **options)
    own_junk = junk if gallery is None else ()

    def of_queries(ids: Any) -> Labels:
        return Labels(ids, groups, junk=own_junk, distractors=distractors, ignored=lists)

    def of_gallery(ids: Any) -> Labels:
        return Labels(ids, gallery_groups, junk=junk, distractors=distractors)

    def each(make: Callable[[Any], Labels], ids: Any) -> Any:
        return (
            {level: make(of) for level, of in ids.items()}
            if isinstance(ids, Mapping)
            else make(ids)
        )

    others = None if gallery is None else each(of_gallery, gallery_labels)
    return function(embeddings, each(of_queries, labels), gallery, others, **options)
