"""The checks of torchreid's and fast-reid's rank evaluation.

KaiyangZhou/deep-person-reid f8cd150, torchreid/metrics/rank_cylib/test_cython.py, and JDAI-CV/fast-reid c9bc3ce,
fastreid/evaluation/rank_cylib/test_cython.py: random distances, identities and cameras of 30 queries and 300 gallery
items; their two implementations must agree. Here ours is compared with the protocol that both document
(Market-1501's): items of the query's identity and camera are removed from its ranking, and queries without another
match are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics

from dml_eval_rs import Labels, evaluate, verify

MAX_RANK = 5
CMC = [f"recall@{k}" for k in range(1, MAX_RANK + 1)]


def case(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    unit = [rng.random((n, 512)).astype(np.float32) for n in (30, 300)]
    queries, gallery = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in unit)
    return {
        "queries": queries,
        "gallery": gallery,
        "distances": 1 - queries.astype(np.float64) @ gallery.T.astype(np.float64),
        "q_pids": rng.integers(0, 30, 30),
        # torchreid draws 300 identities for the gallery, most of which match no query.
        "g_pids": rng.integers(0, 300 if seed % 2 else 30, 300),
        "q_camids": rng.integers(0, 5, 30),
        "g_camids": rng.integers(0, 5, 300),
    }


def market1501(c: dict[str, Any]) -> tuple[np.ndarray, float, float, list[float]]:
    """Return CMC up to `MAX_RANK`, mAP and mINP, and the AP of each query with a match, item by item."""
    cmc, precisions, penalties = [], [], []
    for q in range(30):
        order = sorted(range(300), key=lambda g: c["distances"][q, g])
        kept = [g for g in order if c["g_pids"][g] != c["q_pids"][q] or c["g_camids"][g] != c["q_camids"][q]]
        matches = [c["g_pids"][g] == c["q_pids"][q] for g in kept]
        ranks = [rank for rank, match in enumerate(matches, 1) if match]
        if not ranks:
            continue
        cmc.append([ranks[0] <= k for k in range(1, MAX_RANK + 1)])
        precisions.append(np.mean([i / rank for i, rank in enumerate(ranks, 1)]))
        penalties.append(len(ranks) / ranks[-1])
    return np.mean(cmc, axis=0), float(np.mean(precisions)), float(np.mean(penalties)), precisions


@pytest.mark.parametrize("seed", range(6))
def test_cmc_map_and_minp_are_those_of_the_protocol(seed: int) -> None:
    c = case(seed)
    found = evaluate(
        c["queries"],
        Labels(c["q_pids"], c["q_camids"]),
        c["gallery"],
        Labels(c["g_pids"], c["g_camids"]),
        metrics=[*CMC, "map", "minp"],
    )
    cmc, mean_precision, penalty, precisions = market1501(c)
    assert list(found.values()) == pytest.approx([*cmc, mean_precision, penalty], abs=1e-12)
    values = found.per_query["map"]
    assert values[~np.isnan(values)] == pytest.approx(precisions, abs=1e-12)
    assert found.n_unmatched == 30 - len(precisions)


def test_the_roc_is_that_of_the_pairs_that_fast_reid_lists() -> None:
    """fastreid/evaluation/roc.py lists the distances of all pairs but those of one identity and camera, for scikit-
    learn.
    """
    c = case(0)
    same = c["q_pids"][:, None] == c["g_pids"]
    listed = ~(same & (c["q_camids"][:, None] == c["g_camids"]))
    unit = [x.astype(np.float64) for x in (c["queries"], c["gallery"])]
    found = verify(
        unit[0],
        Labels(c["q_pids"], c["q_camids"]),
        unit[1],
        Labels(c["g_pids"], c["g_camids"]),
        similarity="dot",
        metrics=("tar@far=0.1", "tar@far=0.01", "auc"),
    )
    scores = 1 - c["distances"]
    assert (found.n_positive, found.n_negative) == (int((same & listed).sum()), int((~same).sum()))
    area = sklearn.metrics.roc_auc_score(same[listed], scores[listed])
    far, tar, _ = sklearn.metrics.roc_curve(same[listed], scores[listed], drop_intermediate=False)
    expected = [*(tar[far <= f].max() for f in (0.1, 0.01)), area]
    assert list(found.values()) == pytest.approx(expected, abs=1e-12)


def test_cuhk03_is_a_mean_over_galleries_with_one_item_an_identity() -> None:
    """CUHK03's rule draws one gallery item of each identity, ten times, at random.

    Each draw is an evaluation of ours.
    """
    c = case(2)
    x = [c["queries"].astype(np.float64), c["gallery"].astype(np.float64)]
    rng = np.random.default_rng(0)
    for _ in range(10):
        drawn = np.array([rng.choice(np.flatnonzero(c["g_pids"] == pid)) for pid in np.unique(c["g_pids"])])
        left_out = c["g_camids"][drawn] == c["q_camids"][:, None]
        same = c["g_pids"][drawn] == c["q_pids"][:, None]
        found = evaluate(
            x[0],
            Labels(c["q_pids"], c["q_camids"]),
            x[1][drawn],
            Labels(c["g_pids"][drawn], c["g_camids"][drawn]),
            metrics=CMC,
        )
        distances = np.where(left_out & same, np.inf, c["distances"][:, drawn])
        order = np.argsort(distances, axis=1)
        hits = np.take_along_axis(same & ~left_out, order, axis=1)
        has_match = (same & ~left_out).any(axis=1)
        expected = [hits[has_match, :k].any(axis=1).mean() for k in range(1, 6)]
        assert list(found.values()) == pytest.approx(expected, abs=1e-12)
