"""Cases from other packages' tests, with given values. For commits and differences, see
docs/reference/peers-tests.md.

For cases without values, see `test_against_reference.py`, `test_relation.py`,
`test_against_peers.py`, `test_verification.py` and the tests of the adapters, which compare with
these packages on random data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from eval_support.rankings import evaluate_ranks, evaluate_scores

from dml_eval_rs import Evaluation, Verification, verify

FOUR_DECIMALS = 0.5e-4 + 1e-9


def by_query(
    indexes: list[int], preds: list[float], target: list[int], more: Any = ()
) -> tuple[Any, ...]:
    """Convert torchmetrics' flat lists to a ranking per query, which excludes other queries'
    documents.
    """
    own = np.array(indexes) == np.unique(indexes)[:, None]
    excluded = ~own | np.isin(np.arange(len(indexes)), more)
    return np.tile(preds, (len(own), 1)), np.where(excluded, 0, target), excluded


FLAT = ([0, 0, 0, 1, 1, 1, 1], [0.2, 0.3, 0.5, 0.1, 0.3, 0.5, 0.2])
CURVE = by_query([0, 0, 0, 0, 1, 1, 1], [0.4, 0.01, 0.5, 0.6, 0.2, 0.3, 0.5], [1, 0, 0, 1, 1, 0, 1])
# sentence-transformers: sums of one-hot vectors for five keywords; 2 documents are relevant to the
# fourth query.
CORPUS = np.eye(5)[[0, 4, 3, 2, 1]] + np.outer([0, 0, 0, 0, 1], [0, 0, 1, 0, 0])
# ir-measures: documents D0 to D5, scores for two runs, and grades.
RUN = [[0.8, 0.3, 0.7, 0.4, 0.1, -1], [-1, 0.8, 0.4, 0.3, 0.7, -2]]
SUCCESS = np.array([[0, 1, 2, 2, 0, 0], [1, 0, 0, 2, 0, 0]])
GRADES = np.array([[1, 0, 0, 2, 0, 0], [1, 0, 0, 2, 0, 0]])
UNJUDGED = [[0.8, 0.3, 0.7, 0.4, 0.1], [0.7, 0.8, 0.4, 0.3, -1]], [[0, 1, 0, 1, 1], [1, 0, 0, 0, 0]]
NOT_JUDGED = [[1, 0, 1, 0, 0], [0, 1, 1, 0, 1]]
# Scores, grades, excluded items, and values: the mean, or a value per query.
SCORED: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "torchmetrics, classes": (
        *by_query(*FLAT, [0, 0, 1, 0, 1, 0, 1]),
        {"map": 0.7917, "mrr": 0.75, "precision@2": 0.5, "ir_recall@2": 0.75, "ndcg@4": 0.8467,
         "r_precision": 0.75},
    ),
    "torchmetrics, hit rate": (*by_query(*FLAT, [1, 0, 0, 0, 1, 0, 1]), {"recall@2": 0.5}),
    "torchmetrics, functions": (
        [[0.2, 0.3, 0.5]], [[1, 0, 1]], None,
        {"map": 0.8333, "recall@2": 1, "precision@1": 1, "precision@2": 0.5, "ir_recall@1": 0.5,
         "ir_recall@2": 0.5,
         "r_precision": 0.5},
    ),
    "torchmetrics, reciprocal rank": ([[0.2, 0.3, 0.5]], [[0, 1, 0]], None, {"mrr": 0.5}),
    "torchmetrics, grades": ([[0.1, 0.2, 0.3, 4, 70]], [[10, 0, 0, 1, 5]], None,
        {"ndcg@5": 0.6957}),
    "torchmetrics, curve": (
        *CURVE,
        {**{f"precision@{k}": p for k, p in enumerate([1, 0.5, 0.6667, 0.5], 1)},
         **{f"ir_recall@{k}": share for k, share in enumerate([0.5, 0.5, 1, 1], 1)}},
    ),
    "torchmetrics, ignored": (*by_query(*FLAT, [0, 0, 1, 0, 1, 1, 1], more=[2, 5]),
        {"precision@2": [0, 1]}),
    "sentence-transformers": (
        np.eye(5)[[0, 4, 3, 2, 1]] @ CORPUS.T,
        [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1],
                                               [0, 0, 0, 0, 1]], None,
        {"recall@1": 1, "recall@3": 1, "precision@1": 1, "precision@3": 0.4, "ir_recall@1": 0.9,
         "ir_recall@3": 1,
         "ndcg@3": 1, "mrr@3": 1, "map@5": 1},
    ),
    "pytrec_eval, third": ([[1, 0, 1.5]], [[0, 1, 0]], None,
        {"ndcg@2": 0, "ndcg@3": 0.5, "ndcg@1000": 0.5}),
    "pytrec_eval, second": ([[4, 2, 1.5]], [[0, 1, 0]], None, {"ndcg@3": 0.63093}),
    "ir-measures, success": (RUN, SUCCESS >= 1, None, {"recall@2": [1, 0]}),
    "ir-measures, success of grade 3": (RUN, SUCCESS >= 3, None, {"recall@2": [0, 0]}),
    # A document that was not retrieved comes last, and only changes R.
    "ir-measures, AP and nDCG": (
        RUN, GRADES, None,
        {"map@4": [0.83333, 0.125], "ndcg@4": [0.76018, 0.32739], "ndcg@3": [0.76018, 0]},
    ),
    "ir-measures, AP of grade 2": (RUN, GRADES >= 2, None, {"map@4": [0.33333, 0.25]}),
    # Grades are replaced by the gains {0: 1, 1: 4}, also for judged documents with grade 0.
    "ir-measures, gains": (RUN[:1], [[4, 0, 1, 2, 1, 0]], None, {"ndcg@5": 0.97177}),
    "ir-measures, gains, four documents": (RUN[1:], [[4, 0, 0, 2, 0, 1]], None,
        {"ndcg@4": 0.14949}),
    "ir-measures, all": (*UNJUDGED, None, {"precision@4": [0.5, 0.25]}),
    "ir-measures, judged only": (*UNJUDGED, NOT_JUDGED, {"precision@4": [0.75, 0.25]}),
}  # fmt: skip


def assert_figures(found: Evaluation, figures: dict[str, Any]) -> None:
    for name, expected in figures.items():
        ours = found.per_query[name] if np.ndim(expected) else found[name]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=FOUR_DECIMALS, err_msg=name)


@pytest.mark.parametrize("case", SCORED)
def test_figures_of_scored_documents_are_theirs(case: str) -> None:
    scores, grades, excluded, figures = SCORED[case]
    assert_figures(evaluate_scores(scores, grades, excluded, metrics=figures), figures)


# --- TensorFlow Similarity: four queries with classes 1, 1, 1 and 0, and the ranks of matches in
# the first three


@pytest.mark.parametrize(
    ("name", "micro", "macro"),
    [("precision@3", 7 / 12, 0.5), ("recall@2", 0.75, 0.5), ("ndcg@2", 0.75, 0.5)],
)
def test_micro_and_macro_averages_are_tensorflow_similaritys(
    name: str, micro: float, macro: float
) -> None:
    found = evaluate_ranks([[1, 2], [1, 2], [1, 2], [3]], 100, metrics=name)
    assert found[name] == pytest.approx(micro, abs=1e-5)
    by_class = found.per_class(name, np.array([1, 1, 1, 0]))
    assert np.mean(list(by_class.values())) == pytest.approx(macro, abs=1e-5)


def test_map_at_k_is_tensorflow_similaritys_but_divided_by_r() -> None:
    """Use R = 3 for class 1, R = 10 for class 0, and K = 3; we divide by min(K, R). Clipped to R,
    it is our MAP@R.
    """
    found = evaluate_ranks([[1, 2, 50]] * 3 + [[3, *range(50, 59)]], 100, metrics="map@3")
    theirs = found.per_query["map@3"] * [1, 1, 1, 3 / 10]
    assert theirs.mean() == pytest.approx(0.50833333332, abs=1e-9)
    clipped = evaluate_ranks([[4, 50, 51, 52], [4, 50, 51]], 100, metrics="map@r")
    assert clipped.per_query["map@r"].tolist() == [0.0625, 0.0]


# --- open-metric-learning, `exact_test_case`: six items; an item searches the other five


def test_cmc_precision_and_map_are_open_metric_learnings_but_for_divisors() -> None:
    """OML divides precision@k by min(k, R) and map@k by the matches in the first k; we use k and
    min(k, R).
    """
    ranks, numbers = (
        [[1, 2, 4], [1, 4, 5], [2, 3, 5], [3, 4, 5], [1], [4]],
        np.array([3, 3, 3, 3, 1, 1]),
    )
    figures = {
        1: ([1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 0]),
        2: ([1, 1, 1, 0, 1, 0], [1, 0.5, 0.5, 0, 1, 0], [1, 1, 1 / 2, 0, 1, 0]),
        3: ([1, 1, 1, 1, 1, 0], [2 / 3, 1 / 3, 2 / 3, 1 / 3, 1, 0], [1, 1, 7 / 12, 1 / 3, 1, 0]),
        4: ([1] * 6, [1, 2 / 3, 2 / 3, 2 / 3, 1, 1], [11 / 12, 3 / 4, 7 / 12, 5 / 12, 1, 1 / 4]),
        5: ([1] * 6, [1] * 6, [11 / 12, 21 / 30, 53 / 90, 43 / 90, 1, 1 / 4]),
    }
    for k, (cmc, precision, mean_precision) in figures.items():
        of_queries = evaluate_ranks(
            ranks, 5, metrics=(f"recall@{k}", f"precision@{k}", f"map@{k}")
        ).per_query
        hits = of_queries[f"precision@{k}"] * k
        sums = of_queries[f"map@{k}"] * np.minimum(k, numbers)
        assert of_queries[f"recall@{k}"].tolist() == cmc
        np.testing.assert_allclose(hits / np.minimum(numbers, k), precision, rtol=0, atol=1e-12)
        np.testing.assert_allclose(sums / np.maximum(hits, 1), mean_precision, rtol=0, atol=1e-12)


# --- areas and rates of pairs


def of_scores(truth: list[int], scores: Any, metrics: Any) -> Verification:
    """Verify pairs with these scores, given as dot products with 1."""
    column = np.asarray(scores, np.float64)[:, None]
    return verify(np.ones((1, 1)), [1], column, truth, similarity="dot", metrics=metrics)


@pytest.mark.parametrize(
    ("truth", "scores", "area"),
    [
        ([0, 1], [0, 1], 1.0),  # scikit-learn's `test_roc_curve_toydata`
        ([0, 1], [1, 0], 0.0),
        ([1, 0], [0.5, 0.5], 0.5),
        ([1, 0, 1], [0.2, 0.3, 0.5], 0.5),  # torchmetrics' AUROC
        # ir-measures' accuracy is the share of non-relevant documents ranked after a relevant
        # document.
        ([0, 1, 0, 0], [4, 3, 2, 1], 2 / 3),
        ([0, 1, 0, 1, 0], [5, 4, 3, 2, 1], 1 / 2),
    ],
)
def test_areas_are_theirs(truth: list[int], scores: Any, area: float) -> None:
    assert of_scores(truth, scores, "auc")["auc"] == pytest.approx(area, abs=1e-12)


def test_fnmr_at_fmr_of_open_metric_learning_is_1_less_tar_at_far() -> None:
    distances = np.array([0, 0, 1, 1, 2, 2, 5, 5, 9, 9, 3, 3, 4, 4, 6, 6, 7, 7, 8, 8])
    found = of_scores([1] * 10 + [0] * 10, -distances, ("tar@far=0.1", "tar@far=0.5"))
    assert [1 - rate for rate in found.values()] == pytest.approx([0.4, 0.2], abs=1e-12)


# --- scikit-learn's label ranking


def test_label_ranking_average_precision_is_average_precision_with_pessimistic_ties() -> None:
    """Use the cases of `check_lrap_toy`: all labels for 2 and 3 items, with scores that differ or
    tie.
    """
    for scores in (
        [0.25, 0.75],
        [0.5, 0.5],
        [0.25, 0.5, 0.75],
        [0.5, 0.75, 0.25],
        [0.25, 0.5, 0.5],
    ):
        for bits in range(1, 2 ** len(scores)):
            truth = [bits >> i & 1 for i in range(len(scores))]
            found = evaluate_scores([scores], [truth], ties="pessimistic", metrics=("map", "minp"))
            theirs = sklearn.metrics.label_ranking_average_precision_score([truth], [scores])
            assert found["map"] == pytest.approx(theirs, abs=1e-12)
            coverage = sklearn.metrics.coverage_error(
                [truth], [scores]
            )  # the rank of the last match
            assert sum(truth) / found["minp"] == pytest.approx(coverage, abs=1e-12)


def test_several_matches_tied_with_others_share_the_last_place_there() -> None:
    """Note that scikit-learn's value is not given by any order of the items, but lies between our
    bounds.
    """
    scores, truth, theirs = [0.5] * 4, [1, 1, 1, 0], 3 / 4
    assert sklearn.metrics.label_ranking_average_precision_score([truth], [scores]) == theirs
    low, mean, high = (
        evaluate_scores([scores], [truth], ties=ties, metrics="map")["map"]
        for ties in ("pessimistic", "expected", "optimistic")
    )
    assert low < theirs < mean < high == 1


def test_a_constant_predictor() -> None:
    """Scikit-learn returns the share of matches, 0.25; we return the mean over all orders, which is
    larger.
    """
    truth = np.arange(100) % 4 == 0
    assert sklearn.metrics.average_precision_score(truth, np.ones(100)) == 0.25
    found = evaluate_scores(np.ones((1, 100)), [truth], ties="expected", metrics="map")
    orders = np.random.default_rng(0).permuted(np.tile(truth, (4000, 1)), axis=1)
    sampled = (np.cumsum(orders, axis=1) / np.arange(1, 101) * orders).sum(axis=1) / 25
    assert found["map"] == pytest.approx(sampled.mean(), abs=5 * sampled.std() / 4000**0.5)
    assert found["map"] > 0.25


# --- trec_eval: `make quicktest`, runs for three TREC queries with the values in `test/out.test.aq`
# and `.aql`

# The ranks of relevant documents in the 500 retrieved (ties are sorted by document number, in
# descending order).
_RANKS = {
    301: (
        "6 7 16 18 20 26 30 32 37 39 43 49 54 56 57 59 63 67 70 83 92 96 100 103 112 115 116 122 "
        "125 130 131 133 143 144 145 158 172 178 184 197 199 200 207 210 212 219 224 229 240 249 "
        "253 263 267 274 280 290 307 309 315 317 318 320 327 342 348 384 394 419 435 491 495"
    ),
    302: (
        "1 2 4 5 6 8 9 11 12 13 14 15 16 17 18 19 21 22 24 27 28 30 31 34 36 37 39 42 43 44 47 48 "
        "49 50 51 53 56 58 72 79 82 84 116 154 289 301 331 353 394 458"
    ),
    303: "19 37 41 43 44 65 67 89 99 107",
}
_RELEVANT = {301: 474, 302: 77, 303: 10}
_ITEMS = (
    2000  # documents that were not retrieved come after rank 1,000, so they do not change values
)
_CUTS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)
# trec_eval's names, with the values of the three queries for all cuts, and the means.
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
# In qrels.rel_level, query 301 has 6 documents with grade 4, 6 with 2 and 462 with 1; each other
# query has one grade.
_GRADED_NDCG = [
    [0.0000, 0.0439, 0.0393, 0.0746, 0.0867, 0.1390, 0.1544, 0.1396, 0.1396],
    [0.8304, 0.7530, 0.8085, 0.8082, 0.7604, 0.6046, 0.6209, 0.6617, 0.6617],
    [0.0000, 0.0000, 0.0000, 0.0585, 0.0585, 0.3294, 0.3669, 0.3669, 0.3669],
    [0.2768, 0.2656, 0.2826, 0.3138, 0.3019, 0.3577, 0.3807, 0.3894, 0.3894],
]


def ranks_of(query: int) -> list[int]:
    retrieved = [int(rank) for rank in _RANKS[query].split()]
    return retrieved + list(range(1001, 1001 + _RELEVANT[query] - len(retrieved)))


def assert_trec_evals(found: Evaluation, figures: dict[str, Any]) -> None:
    """Compare the values of the three queries, and the mean."""
    for name, expected in figures.items():
        ours = [*found.per_query[name], found[name]]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=FOUR_DECIMALS, err_msg=name)


def at_cuts(name: str, table: list[list[float]]) -> dict[str, Any]:
    return {f"{name}@{k}": figures for k, figures in zip(_CUTS, np.transpose(table))}


def test_figures_of_rankings_are_trec_evals() -> None:
    figures = {
        **{key: value for theirs, ours in _OURS.items() for key,
            value in at_cuts(ours, _AT_CUTS[theirs]).items()},
        "map@1000": [0.0324, 0.4175, 0.0858, 0.1785],  # map: R is below 1,000
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
    }  # fmt: skip
    cuts = at_cuts("map", _AT_CUTS["map_cut"])
    found = evaluate_ranks([ranks_of(query) for query in _RANKS], _ITEMS, metrics=[*figures, *cuts])
    assert_trec_evals(found, figures)
    # map_cut divides by R, but we divide by min(K, R), so that the best value is 1.
    numbers = np.array(list(_RELEVANT.values()))
    for k, expected in zip(_CUTS, cuts.values()):
        ours = found.per_query[f"map@{k}"] * np.minimum(k, numbers) / numbers
        np.testing.assert_allclose(
            [*ours, ours.mean()], expected, rtol=0, atol=FOUR_DECIMALS, err_msg=f"map_cut_{k}"
        )


def test_graded_figures_are_trec_evals() -> None:
    """Use `trec_eval -l2` with qrels.rel_level: nDCG uses all grades; other measures ignore grades
    below 2.
    """
    missing_301 = [4] * 5 + [2] * 6 + [1] * (462 - 70)
    graded = [
        {r: 4 if r == 307 else 1 for r in ranks_of(301)[:71]}
        | {1001 + i: grade for i, grade in enumerate(missing_301)},
        dict.fromkeys(ranks_of(302), 3),
        {rank: 2 for rank in ranks_of(303) if rank not in (89, 99)},
    ]
    cuts = at_cuts("ndcg", _GRADED_NDCG)
    assert_trec_evals(evaluate_ranks(graded, _ITEMS, metrics=cuts), cuts)
    level = [{rank for rank, grade in matches.items() if grade >= 2} for matches in graded]
    figures = {
        "map@1000": [0.0003, 0.4175, 0.0823, 0.1667],
        "r_precision": [0, 0.5065, 0, 0.1688],
        "mrr": [0.0033, 1, 0.0526, 0.3520],
        "precision@500": [0.0020, 0.1000, 0.0160, 0.0393],
        "ir_recall@100": [0, 0.5455, 0.8750, 0.4735],
        "ir_recall@500": [0.0833, 0.6494, 1, 0.5776],
    }
    assert_trec_evals(evaluate_ranks(level, _ITEMS, metrics=figures), figures)
