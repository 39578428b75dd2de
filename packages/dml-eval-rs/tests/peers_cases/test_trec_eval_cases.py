"""The test of trec_eval and pytrec_eval, and the cases of ir-measures.

usnistgov/trec_eval f425365: `make quicktest` compares runs of three TREC queries with files of expected figures;
pytrec_eval 0d8571e runs the same files. Here are the ranks of the relevant documents in `test/results.test`, and the
figures of `test/out.test.aq` and `test/out.test.aql`, with their four decimals.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from eval_support.rankings import evaluate_ranks, evaluate_scores

from dml_eval_rs import verify

# The ranks of the relevant documents among the 500 retrieved (ties by document number, descending).
_RANKS = {
    301: "6 7 16 18 20 26 30 32 37 39 43 49 54 56 57 59 63 67 70 83 92 96 100 103 112 115 116 122 125 130 131 "
    "133 143 144 145 158 172 178 184 197 199 200 207 210 212 219 224 229 240 249 253 263 267 274 280 290 "
    "307 309 315 317 318 320 327 342 348 384 394 419 435 491 495",
    302: "1 2 4 5 6 8 9 11 12 13 14 15 16 17 18 19 21 22 24 27 28 30 31 34 36 37 39 42 43 44 47 48 49 50 51 53 "
    "56 58 72 79 82 84 116 154 289 301 331 353 394 458",
    303: "19 37 41 43 44 65 67 89 99 107",
}
_RELEVANT = {301: 474, 302: 77, 303: 10}
_ITEMS = 2000  # documents that were not retrieved come after rank 1,000, where no figure sees them
_CUTS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)
# A name of trec_eval: the figures of the three queries at each cut, and their means.
_AT_CUTS = {
    "P": [
        [0.0000, 0.2000, 0.1333, 0.2500, 0.2333, 0.2300, 0.2100, 0.1420, 0.0710],
        [0.8000, 0.7000, 0.8000, 0.8000, 0.7333, 0.4200, 0.2200, 0.1000, 0.0500],
        [0.0000, 0.0000, 0.0000, 0.0500, 0.0333, 0.0900, 0.0500, 0.0200, 0.0100],
        [0.2667, 0.3000, 0.3111, 0.3667, 0.3333, 0.2467, 0.1600, 0.0873, 0.0437],
    ],
    "recall": [
        [0.0000, 0.0042, 0.0042, 0.0105, 0.0148, 0.0485, 0.0886, 0.1498, 0.1498],
        [0.0519, 0.0909, 0.1558, 0.2078, 0.2857, 0.5455, 0.5714, 0.6494, 0.6494],
        [0.0000, 0.0000, 0.0000, 0.1000, 0.1000, 0.9000, 1.0000, 1.0000, 1.0000],
        [0.0173, 0.0317, 0.0534, 0.1061, 0.1335, 0.4980, 0.5533, 0.5997, 0.5997],
    ],
    "ndcg_cut": [
        [0.0000, 0.1518, 0.1176, 0.1985, 0.1975, 0.2166, 0.2063, 0.1584, 0.1584],
        [0.8304, 0.7530, 0.8085, 0.8082, 0.7604, 0.6046, 0.6209, 0.6617, 0.6617],
        [0.0000, 0.0000, 0.0000, 0.0509, 0.0509, 0.3537, 0.3862, 0.3862, 0.3862],
        [0.2768, 0.3016, 0.3087, 0.3525, 0.3363, 0.3916, 0.4045, 0.4021, 0.4021],
    ],
    "map_cut": [
        [0.0000, 0.0010, 0.0010, 0.0023, 0.0033, 0.0118, 0.0208, 0.0324, 0.0324],
        [0.0461, 0.0768, 0.1265, 0.1695, 0.2298, 0.3983, 0.4068, 0.4175, 0.4175],
        [0.0000, 0.0000, 0.0000, 0.0053, 0.0053, 0.0764, 0.0858, 0.0858, 0.0858],
        [0.0154, 0.0259, 0.0425, 0.0591, 0.0795, 0.1622, 0.1711, 0.1785, 0.1785],
    ],
}
_OURS = {"P": "precision", "recall": "ir_recall", "ndcg_cut": "ndcg"}
# Grades of query 301 in qrels.rel_level: 6 documents of 4, 6 of 2 and 462 of 1; those of the other queries are equal.
_GRADED_NDCG = [
    [0.0000, 0.0439, 0.0393, 0.0746, 0.0867, 0.1390, 0.1544, 0.1396, 0.1396],
    [0.8304, 0.7530, 0.8085, 0.8082, 0.7604, 0.6046, 0.6209, 0.6617, 0.6617],
    [0.0000, 0.0000, 0.0000, 0.0585, 0.0585, 0.3294, 0.3669, 0.3669, 0.3669],
    [0.2768, 0.2656, 0.2826, 0.3138, 0.3019, 0.3577, 0.3807, 0.3894, 0.3894],
]
# With four decimals.
_ROUNDING = 0.5e-4 + 1e-9


def ranks_of(query: int) -> list[int]:
    retrieved = [int(rank) for rank in _RANKS[query].split()]
    return retrieved + list(range(1001, 1001 + _RELEVANT[query] - len(retrieved)))


@pytest.fixture(scope="module")
def found() -> Any:
    return evaluate_ranks(
        [ranks_of(query) for query in _RANKS],
        _ITEMS,
        metrics=[
            *(f"recall@{k}" for k in (1, 2, 5, 10, 20)),
            *("r_precision", "mrr", "precision@3", "precision@7"),
            *(f"{name}@{k}" for name in (*_OURS.values(), "map") for k in _CUTS),
        ],
    )


@pytest.mark.parametrize("name", ["P", "recall", "ndcg_cut"])
def test_figures_at_cuts_are_trec_evals(found: Any, name: str) -> None:
    for k, figures in zip(_CUTS, np.transpose(_AT_CUTS[name])):
        ours = [*found.per_query[f"{_OURS[name]}@{k}"], found[f"{_OURS[name]}@{k}"]]
        np.testing.assert_allclose(ours, figures, rtol=0, atol=_ROUNDING, err_msg=f"{name}_{k}")


def test_map_cut_is_average_precision_at_k_but_divided_by_r(found: Any) -> None:
    """trec_eval divides by R where we divide by min(K, R), the most that K places can reach."""
    numbers = np.array(list(_RELEVANT.values()))
    for k, figures in zip(_CUTS, np.transpose(_AT_CUTS["map_cut"])):
        ours = found.per_query[f"map@{k}"] * np.minimum(k, numbers) / numbers
        np.testing.assert_allclose(
            [*ours, ours.mean()], figures, rtol=0, atol=_ROUNDING, err_msg=f"map_cut_{k}"
        )


def test_figures_of_the_whole_ranking_are_trec_evals(found: Any) -> None:
    for name, figures in {
        "map@1000": [0.0324, 0.4175, 0.0858, 0.1785],  # map: R is below 1,000
        "ndcg@1000": [0.1584, 0.6617, 0.3862, 0.4021],
        "r_precision": [0.1456, 0.5065, 0.0000, 0.2174],
        "mrr": [0.1667, 1.0000, 0.0526, 0.4064],
        "recall@1": [0, 1, 0, 0.3333],  # success_1
        "recall@5": [0, 1, 0, 0.3333],
        "recall@10": [1, 1, 0, 0.6667],
        # out.test.meas_params
        "recall@2": [0, 1, 0, 0.3333],
        "recall@20": [1, 1, 1, 1.0],
        "precision@3": [0, 0.6667, 0, 0.2222],
        "precision@7": [0.2857, 0.7143, 0, 0.3333],
    }.items():
        ours = [*found.per_query[name], found[name]]
        np.testing.assert_allclose(ours, figures, rtol=0, atol=_ROUNDING, err_msg=name)


def test_graded_figures_are_trec_evals() -> None:
    """`trec_eval -l2` with qrels.rel_level: nDCG uses all grades, the other measures those of at least 2."""
    missing_301 = [4] * 5 + [2] * 6 + [1] * (462 - 70)
    graded = [
        {r: 4 if r == 307 else 1 for r in ranks_of(301)[:71]}
        | {1001 + i: grade for i, grade in enumerate(missing_301)},
        dict.fromkeys(ranks_of(302), 3),
        {rank: 2 for rank in ranks_of(303) if rank not in (89, 99)},
    ]
    ndcg = evaluate_ranks(graded, _ITEMS, metrics=[f"ndcg@{k}" for k in _CUTS])
    for k, figures in zip(_CUTS, np.transpose(_GRADED_NDCG)):
        ours = [*ndcg.per_query[f"ndcg@{k}"], ndcg[f"ndcg@{k}"]]
        np.testing.assert_allclose(ours, figures, rtol=0, atol=_ROUNDING, err_msg=f"ndcg_cut_{k}")
    level = [{rank for rank, grade in matches.items() if grade >= 2} for matches in graded]
    figures_of = {
        "map@1000": [0.0003, 0.4175, 0.0823, 0.1667],
        "r_precision": [0, 0.5065, 0, 0.1688],
        "mrr": [0.0033, 1, 0.0526, 0.3520],
        "precision@500": [0.0020, 0.1000, 0.0160, 0.0393],
        "ir_recall@100": [0, 0.5455, 0.8750, 0.4735],
        "ir_recall@500": [0.0833, 0.6494, 1, 0.5776],
    }
    found = evaluate_ranks(level, _ITEMS, metrics=figures_of)
    for name, expected in figures_of.items():
        ours = [*found.per_query[name], found[name]]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=_ROUNDING, err_msg=name)


@pytest.mark.parametrize(
    ("scores", "figure"),
    [([1, 0, 1.5], 0.5), ([1, 2, 1.5], 1.0), ([4, 2, 1.5], 0.6309297535714575)],
    ids=["third", "first", "second"],
)
def test_ndcg_is_pytrec_evals(scores: list[float], figure: float) -> None:
    """`test_ndcg`: of three documents the second is relevant."""
    found = evaluate_scores([scores], [[0, 1, 0]], metrics="ndcg@3")
    assert found["ndcg@3"] == pytest.approx(figure, abs=1e-7)


def test_ndcg_cut_is_pytrec_evals() -> None:
    """`test_ndcg_cut`: also a cut far beyond the documents."""
    metrics = [f"ndcg@{k}" for k in (1, 2, 3, 1000)]
    found = evaluate_scores([[1, 0, 1.5]], [[0, 1, 0]], metrics=metrics)
    assert list(found.values()) == [0, 0, pytest.approx(0.5), pytest.approx(0.5)]


# ir-measures dc04a88, tests/test_pytrec_eval.py. Documents D0 to D5; scores of two runs, and tables of grades.
_RUN = np.array([[0.8, 0.3, 0.7, 0.4, 0.1, -1], [-1, 0.8, 0.4, 0.3, 0.7, -2]])
_SUCCESS_GRADES = np.array([[0, 1, 2, 2, 0, 0], [1, 0, 0, 2, 0, 0]])
_GRADES = np.array([[1, 0, 0, 2, 0, 0], [1, 0, 0, 2, 0, 0]])


@pytest.mark.parametrize(("level", "figures"), [(1, [1, 0]), (2, [1, 0]), (3, [0, 0])])
def test_success_is_ir_measures(level: int, figures: list[float]) -> None:
    """`test_Success`: levels of relevance are a threshold on the grades."""
    found = evaluate_scores(_RUN, level <= _SUCCESS_GRADES, metrics="recall@2")
    assert found.per_query["recall@2"].tolist() == figures


def test_average_precision_and_ndcg_are_ir_measures() -> None:
    """`test_infAP` and `test_nDCG`: a document that was not retrieved comes after all, and counts in R alone."""
    found = evaluate_scores(_RUN, _GRADES, metrics=("map@4", "ndcg@3", "ndcg@4"))
    np.testing.assert_allclose(found.per_query["map@4"], [0.83333, 0.125], atol=1e-4)
    np.testing.assert_allclose(found.per_query["ndcg@4"], [0.76018, 0.32739], atol=1e-5)
    np.testing.assert_allclose(found.per_query["ndcg@3"], [0.76018, 0.0], atol=1e-5)
    strict = evaluate_scores(_RUN, _GRADES >= 2, metrics="map@4")
    np.testing.assert_allclose(strict.per_query["map@4"], [0.33333, 0.25], atol=1e-4)


def test_gains_of_ir_measures_are_grades() -> None:
    """`test_nDCG` with gains {0: 1, 1: 4}: grades replaced by their gains, judged documents of grade 0 among them."""
    gains = np.array([[4, 0, 1, 2, 1, 0], [4, 0, 0, 2, 0, 1]])
    found = evaluate_scores(_RUN, gains, metrics=("ndcg@4", "ndcg@5"))
    # The runs have five and four documents.
    ours = [found.per_query["ndcg@5"][0], found.per_query["ndcg@4"][1]]
    np.testing.assert_allclose(ours, [0.97177, 0.14949], rtol=0, atol=1e-5)


def test_judged_documents_alone_are_those_not_ignored() -> None:
    """`test_P` and `test_judged_only`: unjudged documents are excluded."""
    run = np.array([[0.8, 0.3, 0.7, 0.4, 0.1], [0.7, 0.8, 0.4, 0.3, -1]])
    relevant = np.array([[0, 1, 0, 1, 1], [1, 0, 0, 0, 0]])
    judged = np.array([[0, 1, 0, 1, 1], [1, 0, 0, 1, 0]], bool)
    found = evaluate_scores(run, relevant, metrics="precision@4")
    assert found.per_query["precision@4"].tolist() == [0.5, 0.25]
    found = evaluate_scores(run, relevant, left_out=~judged, metrics="precision@4")
    assert found.per_query["precision@4"].tolist() == [0.75, 0.25]


def test_accuracy_of_ir_measures_is_an_auc() -> None:
    """`tests/test_accuracy.py`.

    The share of retrieved non-relevant documents after a relevant one, averaged over those retrieved.
    """
    # Whether each retrieved document is relevant (rel=1), in order.
    for ranking, figure in [([0, 1, 0, 0], 2 / 3), ([0, 1, 0, 1, 0], (2 / 3 + 1 / 3) / 2)]:
        scores = -np.arange(float(len(ranking)))
        found = verify(scores[None], [1], np.eye(len(ranking)), ranking, similarity="dot", metrics="auc")
        assert math.isclose(found["auc"], figure, abs_tol=1e-12)
