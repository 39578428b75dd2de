"""Measure how well wrong labels are found, compared with cleanlab 2.9 and the same votes.

    python benchmarks/data/bench_suspects.py glyphs CACHE
    python benchmarks/data/bench_suspects.py pictures/units CACHE

The second form needs the pictures of docs/guide/pictures.md. Labels of the test classes are
changed: 1, 5 or 10 % to a random class, or 5 % to the most similar class. Three embeddings rank the
items: `clean`, trained on other classes; `folds`, two networks, each trained on a half of the
changed labels to rank the other half; and `memorised`, trained on all changed labels. CACHE keeps
the embeddings for a second call.

`ours` is the score of `suspect_labels`. `cleanlab` lists the items of ``find_label_issues`` first,
and sorts by the normalised margin of the same votes, as a table of items times classes. `plain` is
1 − the share of the item's label. P@n is the precision of the first n items, where n labels were
changed; AP is the average precision. The last columns are the precision and recall of the pruned
items.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from torch import nn

from dml_core import registry
from dml_eval_rs import knn, suspect_labels
from dml_losses import NormSoftmax
from dml_train.recipe.loading import load_recipe
from dml_train.training.build import build_dataset, build_model

NOISES = {"random 1 %": 0.01, "random 5 %": 0.05, "random 10 %": 0.10, "similar 5 %": 0.05}
SEEDS = range(3, 6)  # seeds 0 to 2 of the pictures chose the settings
K, TEMPERATURE, DIM, BATCH = 20, 0.1, 128, 128


def main(source: str, cache: Path) -> None:
    """Print a row per embedding and noise: means and standard deviations over seeds."""
    make, train, test, steps = load(source)
    names = ("ours", "cleanlab", "plain")
    print(f"{len(test[1]):,} items of {len(np.unique(test[1]))} classes, k={K}, {steps} steps")
    print(
        f"{'':22}"
        + "".join(f"{f'{m} {n}':>18}" for m in ("P@n", "AP") for n in names)
        + "   pruned: precision, recall"
    )
    found: dict[tuple[str, str], list[Any]] = {}
    for seed, (noise, share) in itertools.product(SEEDS, NOISES.items()):
        kept = Cache(cache, Path(source).name)
        fit_and_embed = partial(_fit_and_embed, make, test[0], steps, seed)
        clean = kept(f"clean-{seed}", fit_and_embed, train)
        given = change(test[1], clean[0] if noise.startswith("similar") else None, share, seed)
        fold = np.random.default_rng(seed).permutation(len(given)) % 2
        halves = [(test[0][fold != f], given[fold != f]) for f in (0, 1)]
        both = kept(f"folds-{noise}-{seed}", fit_and_embed, *halves)
        all_of = kept(f"memorised-{noise}-{seed}", fit_and_embed, (test[0], given))
        for kind, embedded in (("clean", clean), ("folds", both), ("memorised", all_of)):
            ranked = [rank(rows, given) for rows in embedded]
            scores = [
                part[0] if len(ranked) == 1 else np.where(fold == 0, *part) for part in zip(*ranked)
            ]
            found.setdefault((kind, noise), []).append(measure(scores, given != test[1]))
    for (kind, noise), seeds in sorted(found.items()):
        mean, spread = np.mean(seeds, axis=0), np.std(seeds, axis=0, ddof=1)
        cells = "".join(f"{f'{m:.3f} ± {s:.3f}':>18}" for m, s in zip(mean[:6], spread))
        print(f"{kind:10}{noise:12}{cells}        {mean[6]:.2f}, {mean[7]:.2f}")
    flat = np.array([row for rows in found.values() for row in rows])
    for other, name in ((1, "cleanlab"), (2, "plain")):
        for column, metric in ((0, "P@n"), (3, "AP")):
            gap = flat[:, column] - flat[:, column + other]
            wins, losses = (gap > 0).sum(), (gap < 0).sum()
            counts = f"higher in {wins}, lower in {losses} of {len(gap)}"
            print(f"ours − {name}, {metric}: mean {gap.mean():+.4f}, {counts}")


def load(source: str) -> tuple[Callable[[], nn.Module], tuple[Any, Any], tuple[Any, Any], int]:
    """Return a function that makes a network, the inputs and labels of both halves, and the
    steps.
    """
    if source == "glyphs":
        settings = {"dataset.max_classes": 1000, "embedding.dim": DIM, "backbone.norm": "batch"}
        recipe = load_recipe("glyphs-tiny", settings)
        data, device = build_dataset(recipe, registry()), torch.device("cpu")
        train, test = ((s.load(np.arange(len(s))), s.labels) for s in (data.train, data.test))
        return lambda: build_model(recipe, 1, registry(), device), train, test, 400
    settings = {
        "dataset.root": source,
        "embedding.linear": False,
        "embedding.layer_norm": False,
        "embedding.dim": 1280,
    }
    recipe = load_recipe("pretrained/units", settings)
    data = build_dataset(recipe, registry())
    frozen = build_model(recipe, 3, registry(), torch.device("cpu")).eval()
    train, test = (
        (embed(frozen, s.load(np.arange(len(s)))), s.labels) for s in (data.train, data.test)
    )
    return lambda: nn.Linear(1280, DIM), *((torch.from_numpy(x), y) for x, y in (train, test)), 300


class Cache(NamedTuple):
    """A folder of embeddings."""

    folder: Path
    source: str

    def __call__(self, name: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """Load embeddings, or make and save them."""
        path = self.folder / f"{self.source}-{name.replace(' ', '')}.npy"
        if not path.exists():
            np.save(path, make(*arguments))
        return np.load(path)


def _fit_and_embed(
    make: Callable[[], nn.Module], x: Any, steps: int, seed: int, *train: tuple[Any, Any]
) -> Any:
    """Train a network per training set, and embed x with each."""
    return np.stack([fit(make, *each, steps, seed)(x) for each in train])


def fit(
    make: Callable[[], nn.Module], x: Any, labels: Any, steps: int, seed: int
) -> Callable[[Any], Any]:
    """Train by NormSoftmax, and return the function that embeds."""
    torch.manual_seed(seed)  # for a linear layer
    network = make().train()
    torch.manual_seed(seed)  # building the network for glyphs uses the recipe's seed
    loss = NormSoftmax(int(labels.max()) + 1, DIM, temperature=0.1)
    optimizer = torch.optim.AdamW(
        [*network.parameters(), *loss.parameters()], lr=3e-3, weight_decay=1e-3
    )
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = torch.randint(len(x), (BATCH,))
        optimizer.zero_grad()
        loss(network(x[batch]), torch.from_numpy(labels)[batch]).backward()
        optimizer.step()
        decay.step()
    return lambda images: embed(network.eval(), images)


@torch.no_grad()
def embed(network: nn.Module, x: Any) -> Any:
    """Embed images or features."""
    return torch.cat([network(part) for part in x.split(256)]).numpy()


def change(labels: Any, embedded: Any | None, share: float, seed: int) -> Any:
    """Change a share of the labels, to random classes, or to the class with the most similar
    mean.
    """
    rng, classes = np.random.default_rng(100 + seed), int(labels.max()) + 1
    chosen = rng.choice(len(labels), round(share * len(labels)), replace=False)
    new = (labels + rng.integers(1, classes, len(labels))) % classes
    if embedded is not None:
        unit = embedded / np.linalg.norm(embedded, axis=1, keepdims=True)
        means = np.stack([unit[labels == c].mean(0) for c in range(classes)])
        new = knn(means, None, 1, exclude_self=True)[1][labels, 0]
    given = labels.copy()
    given[chosen] = new[chosen]
    return given


def rank(x: Any, given: Any) -> list[Any]:
    """Score all items by all methods."""
    similarity, item = knn(x, None, K, exclude_self=True)
    weight = np.exp((similarity.astype(float) - similarity[:, :1]) / TEMPERATURE)
    votes = np.zeros((len(x), int(given.max()) + 1))
    np.add.at(
        votes, (np.arange(len(x))[:, None], given[item]), weight / weight.sum(1, keepdims=True)
    )
    quality = get_label_quality_scores(given, votes, method="normalized_margin")
    issues = find_label_issues(given, votes, filter_by="prune_by_noise_rate", n_jobs=1)
    ours = suspect_labels(x, given, K, temperature=TEMPERATURE)
    return [ours.score, issues + 1 - quality, 1 - votes[np.arange(len(x)), given], ours.pruned]


def measure(scores: list[Any], wrong: Any) -> list[float]:
    """Return the precision of the first n for all methods, then the AP, then precision and recall
    of pruned items.
    """
    n, precision, average = int(wrong.sum()), [], []
    for score in scores[:-1]:
        # Break ties at random: the order of the items must not help a method.
        order = np.lexsort((np.random.default_rng(0).random(len(score)), -score))
        hit = wrong[order]
        precision.append(hit[:n].mean())
        average.append((np.cumsum(hit) / np.arange(1, len(hit) + 1))[hit].mean())
    removed = scores[-1] > 0
    return [
        *precision,
        *average,
        wrong[removed].mean() if removed.any() else np.nan,
        removed[wrong].mean(),
    ]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
