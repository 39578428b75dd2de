"""Intervals and paired tests for verification, by identity, compared with slow sums over pairs and
simulations.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from eval_support import verification_reference as reference
from eval_support.scores_reference import score
from eval_support.trial import trial

from dml_eval_rs import Labels, Verification, binarize, verify
from dml_eval_rs.verification import by_identity

METRICS = ("tar@far=0.3", "tar@far=0.1", "tar@far=1e-2", "eer", "auc")
RNG = np.random.default_rng(0)
LABELS = np.array([f"p{i}" for i in RNG.integers(0, 12, 60)])
GROUPS = RNG.integers(0, 2, 60)
ROWS = {
    "normal": RNG.normal(size=(60, 5)),
    "ties": np.column_stack([RNG.integers(-2, 3, (60, 4)), np.ones(60)]).astype(np.float32),
}


def kept_pairs(
    found: Verification, sides: list[tuple[np.ndarray, np.ndarray, np.ndarray]], similarity: str
) -> Any:
    """List (identity, identity, score) for all pairs, except pairs with equal label and group."""
    (x, labels, groups), (y, item_labels, item_groups) = sides[0], sides[-1]
    return [
        (labels[i], item_labels[j], score(x[i], y[j], similarity))
        for i in range(len(x))
        for j in range(len(y))
        if (len(sides) > 1 or i < j)
        and not (labels[i] == item_labels[j] and groups[i] == item_groups[j])
    ]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "hamming"])
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("how", ["alone", "gallery", "pairs"])
def test_curves_of_resampled_identities_are_those_of_weighted_pairs(
    how: str, kind: str, similarity: Any
) -> None:
    rows = binarize(ROWS[kind]) if similarity == "hamming" else ROWS[kind]
    sides = [(rows, LABELS, GROUPS)]
    if how == "gallery":
        sides = [(x[:25], labels[:25], groups[:25]) for x, labels, groups in sides] + [
            (x[20:], labels[20:], groups[20:]) for x, labels, groups in sides
        ]
    arguments = [part for x, labels, groups in sides for part in (x, Labels(labels, groups))]
    options: dict[str, Any] = {"metrics": METRICS, "similarity": similarity}
    i, j = np.triu_indices(60, 1)
    if how == "pairs":
        options["pairs"] = np.stack([i, j], 1)
    found = verify(*arguments, **options)
    assert found._identities is not None
    names = sorted(set(sides[0][1]))
    pairs = kept_pairs(found, sides, similarity)
    thresholds = found._identities._place(by_identity.depth_for([0.01]))
    assert (np.diff(thresholds) <= 0).all()
    for kernel in (None, "portable"):
        found._identities._counted = None
        with trial(kernel=kernel):
            counted = found._identities.count(len(thresholds))
        assert counted.positives.shape == (len(names), len(thresholds) + 1)
        for draw in [np.arange(len(names)), *RNG.integers(0, len(names), (4, len(names)))]:
            weight = np.bincount(draw, minlength=len(names)).astype(float)
            curve = reference.resampled_curve(
                thresholds.tolist(), pairs, dict(zip(names, weight)), of_both=how != "gallery"
            )
            far, tar = counted.curves(weight[None])
            np.testing.assert_allclose(far[0], [far for far, _ in curve[1:]], atol=1e-14)
            np.testing.assert_allclose(tar[0], [tar for _, tar in curve[1:]], atol=1e-14)
            for name in METRICS:
                measured = by_identity._measure(name, far, tar)[0]
                assert measured == pytest.approx(reference.read_metric(name, curve), abs=1e-12)
    for (
        name
    ) in METRICS:  # if all identities are drawn once, the value must be near that for all pairs
        far, tar = counted.curves(np.ones((1, len(names))))
        if kind == "normal" and similarity != "hamming":
            assert by_identity._measure(name, far, tar)[0] == pytest.approx(found[name], abs=0.05)


def test_thresholds_continue_beyond_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = simulate(40, np.random.default_rng(5))
    (placed,) = (verify(x, labels)._identities,)
    assert placed is not None
    every = placed._place(24)
    monkeypatch.setattr(by_identity, "_SAMPLED", 4000)
    few = placed._place(24)
    assert (np.diff(few) < 0).all()
    np.testing.assert_allclose(few[4:], every[4:], atol=0.05)
    np.testing.assert_allclose(
        few[:4], every[:4], atol=0.15
    )  # these thresholds are above all sampled scores


def test_queries_are_counted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = FOUND._identities.count(25) if FOUND._identities else None
    found = verify(X, IDS, metrics=METRICS)._identities
    monkeypatch.setattr(by_identity, "_AT_A_TIME", 500)
    assert counted is not None
    assert found is not None
    for kind in ("positives", "negatives"):
        np.testing.assert_array_equal(getattr(found.count(25), kind), getattr(counted, kind))


def simulate(n: int, rng: np.random.Generator, noise: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    """Draw three items for each of n identities, some of which vary more than others."""
    spread = noise * np.exp(0.3 * rng.normal(size=(n, 1, 1)))
    x = rng.normal(size=(n, 1, 8)) + spread * rng.normal(size=(n, 3, 8))
    return x.reshape(3 * n, 8), np.repeat(np.arange(n), 3)


@pytest.mark.slow
def test_intervals_cover_the_value_of_many_identities_and_tests_reject_at_their_level() -> None:
    """Check loose bounds for 60 data sets of 40 identities: 95 % intervals must cover at least 80
    %.
    """
    metrics = ("tar@far=1e-1", "tar@far=1e-2", "eer", "auc")
    truth = verify(*simulate(1500, np.random.default_rng(99)), metrics=metrics)
    covered, rejected = dict.fromkeys(metrics, 0), dict.fromkeys(metrics, 0)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x, labels = simulate(40, rng)
        models = [verify(x, labels, metrics=metrics)]
        other, _ = simulate(40, rng)
        models.append(verify(other, labels, metrics=metrics))
        for name in metrics:
            interval = models[0].confidence_interval(name, seed=seed)
            covered[name] += interval.low <= truth[name] <= interval.high
            if seed < 30:
                rejected[name] += models[0].compare(models[1], name, seed=seed).p_value < 0.05
    assert all(number >= 48 for number in covered.values()), covered
    assert all(number <= 6 for number in rejected.values()), rejected


X, IDS = simulate(50, np.random.default_rng(1))
FOUND = verify(X, IDS, metrics=METRICS)
WORSE = verify(X + np.random.default_rng(2).normal(size=X.shape), IDS, metrics=METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_a_seed_gives_an_interval_and_a_higher_level_a_wider_one(name: str) -> None:
    narrow, wide = FOUND.confidence_interval(name, 0.5, 7), FOUND.confidence_interval(name, 0.99, 7)
    assert narrow == verify(X, IDS, metrics=METRICS, threads=2).confidence_interval(name, 0.5, 7)
    assert narrow != FOUND.confidence_interval(name, 0.5, 8)
    assert 0 <= wide.low < narrow.low < FOUND[name] < narrow.high < wide.high <= 1
    assert (narrow.level, wide.level) == (0.5, 0.99)


@pytest.mark.parametrize("name", METRICS)
def test_a_worse_model_is_told_from_a_better_one(name: str) -> None:
    found = FOUND.compare(WORSE, name)
    assert found.difference == FOUND[name] - WORSE[name]
    assert found.p_value < 0.05
    assert found.n_queries == 50
    assert (found.interval.low > 0) if name != "eer" else (found.interval.high < 0)
    opposite = WORSE.compare(FOUND, name)
    assert opposite.p_value == found.p_value
    assert opposite.interval.low == pytest.approx(-found.interval.high, abs=1e-12)
    same = FOUND.compare(FOUND, name)
    assert (same.difference, same.p_value, same.interval.low, same.interval.high) == (0, 1, 0, 0)


def test_the_accuracy_is_resampled_by_folds() -> None:
    i, j = np.triu_indices(len(X), 1)
    pairs = np.stack([i, j], 1)[RNG.permutation(len(i))[:900]]
    found, worse = (
        verify(x, IDS, pairs=pairs, folds=10, metrics="auc")
        for x in (X, X + 3 * RNG.normal(size=X.shape))
    )
    assert found.fold_accuracy is not None
    interval = found.confidence_interval("accuracy")
    means = np.random.default_rng(0).choice(found.fold_accuracy, (20_000, 10)).mean(axis=1)
    assert [interval.low, interval.high] == pytest.approx(
        np.quantile(means, [0.025, 0.975]), abs=0.003
    )
    # Pickles keep the folds.
    assert pickle.loads(pickle.dumps(found)).confidence_interval("accuracy") == interval
    compared = found.compare(worse, "accuracy")
    assert (compared.difference, compared.n_queries) == (found["accuracy"] - worse["accuracy"], 10)
    assert worse.compare(worse, "accuracy").p_value == 1
    with pytest.raises(ValueError, match="the results have different pairs"):
        found.compare(verify(X, IDS, pairs=pairs, folds=9, metrics="auc"), "accuracy")


def test_junk_and_identities_without_pairs_are_not_resampled() -> None:
    ids = np.where(IDS < 2, -1, IDS)
    found = verify(X, Labels(ids, junk=-1), metrics=METRICS)
    assert found.confidence_interval("eer") == verify(
        X[IDS > 1], IDS[IDS > 1], metrics=METRICS
    ).confidence_interval("eer")
    pairs = np.array([(i, j) for i in range(60) for j in range(i)])
    some = verify(X, IDS, pairs=pairs)
    assert some.compare(some, "eer").n_queries == 20


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FOUND.confidence_interval("tar@far=1e-3"), KeyError,
         "no metric 'tar@far=1e-3' was measured"),
        (lambda: FOUND.confidence_interval("accuracy"), KeyError, "no metric 'accuracy'"),
        (lambda: FOUND.confidence_interval("eer", 1.0), ValueError, "level is 1.0"),
        (lambda: FOUND.confidence_interval("eer", seed=-1), ValueError, "seed is -1"),
        (lambda: pickle.loads(pickle.dumps(FOUND)).confidence_interval("eer"), ValueError,
         "this result was pickled or comes from verify_shards; use verify"),
        (lambda: FOUND.compare(pickle.loads(pickle.dumps(FOUND)), "eer"), ValueError,
         "intervals need the embeddings"),
        (lambda: FOUND.compare(verify(X, IDS // 2), "eer"), ValueError,
         "the results have different pairs"),
        (lambda: FOUND.compare(verify(X, IDS, metrics="auc"), "eer"), KeyError, "no metric 'eer'"),
        (lambda: verify(X[:3], [0, 0, 0], X[:6], IDS[:6]).confidence_interval("eer"), ValueError,
         "the pairs have 1 identities"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_errors_say_what_came_and_what_was_expected(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
