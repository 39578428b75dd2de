"""Time all functions on unusual work: a large number of matches or neighbours, few queries, data of
all kinds.

    python benchmarks/evaluator/cliffs.py rows [--only TEXT ...] [--kernel NAME] [--peers]
    python benchmarks/evaluator/cliffs.py scan [--items 10000] [--kernel NAME]
    python benchmarks/evaluator/cliffs.py curve [--items 10000] [--out curve.png]

`rows` times ordinary uses that once took much longer than similar uses; with `--peers`, it also
times other libraries. `scan` times functions by kind of data, number of classes and k; it also
marks costs that exceed three times the cost for the previous or next number (or k). `curve` draws
the cost per pair against the matches per query. `rows` measures wall-clock time on all cores;
`scan` and `curve` measure the processor time of a single thread. Costs are not asserted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from compare import machine

import dml_eval_rs as ours
import dml_eval_rs._native as _native

SEED = 0
AP: Any = {"metrics": ("recall@1", "precision@1", "r_precision", "map@r", "mrr", "map", "minp")}
CODES: Any = {"similarity": "hamming"}
Rows = tuple[np.ndarray, np.ndarray]
# A row's name, the number of pairs, our call, and a peer's name and call.
Row = tuple[str, float, Callable[[], Any], str, Callable[[], Any] | None]
KINDS = (
    "isotropic",
    "noisy",
    "clustered",
    "tight",
    "few values",
    "one cluster",
    "subspace",
    "duplicates",
)


def classes_of(
    n: int, classes: int, spread: float, noise: float, dim: int = 128, seed: int = SEED
) -> Rows:
    """Draw rows around the centres of classes; the labels cycle through the classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = spread * rng.normal(size=(classes, dim))
    return (centres[labels] + noise * rng.normal(size=(n, dim))).astype(np.float32), labels


def rows_of(kind: str, n: int, classes: int, dim: int = 128) -> Rows:
    """Draw rows of a kind in `KINDS`."""
    rng = np.random.default_rng(SEED)
    spread, noise = {"isotropic": (0.0, 1.0), "clustered": (1.0, 0.3), "tight": (1.0, 0.01)}.get(
        kind, (0.3, 1.0)
    )
    x, labels = classes_of(n, classes, spread, noise, dim)
    if kind == "few values":
        x = np.round(x)
    elif kind == "one cluster":
        x = 1 + 0.01 * x
    elif kind == "subspace":
        x[:, dim // 8 :] *= 0.01
    elif kind == "duplicates":
        x = x[rng.integers(0, max(1, n // 4), n)]
    return x, labels


def codes_of(n: int, classes: int, bits: int = 64) -> Rows:
    x, labels = classes_of(n, classes, 0.3, 1.0, bits)
    return ours.binarize(x), labels


def average_precision_by_torch(x: np.ndarray, labels: np.ndarray) -> Callable[[], Any]:
    import torch

    rows, classes = torch.nn.functional.normalize(torch.from_numpy(x)), torch.from_numpy(labels)

    def call() -> list[Any]:
        found = []
        for part, own in zip(rows.split(1000), classes.split(1000)):
            order = (part @ rows.T).argsort(dim=1, descending=True)[:, 1:]
            match = (classes[order] == own[:, None]).float()
            precision = match.cumsum(1) / torch.arange(1, match.shape[1] + 1)
            found.append((precision * match).sum(1) / match.sum(1))
        return found

    return call


def retrieval_rows() -> Iterator[Row]:
    n = 20_000
    for classes in (2, 10, 20, 100, 500):
        x, y = classes_of(n, classes, 0.3, 1.0)
        yield (
            f"AP, {classes} classes", n * n, lambda x=x, y=y: ours.evaluate(x, y, **AP),
            "torch", average_precision_by_torch(x, y),
        )  # fmt: skip
    for classes in (2, 10, 20, 100):
        x, y = classes_of(n, classes, 0.3, 1.0)
        yield (
            f"default metrics, {classes} classes",
            n * n,
            lambda x=x, y=y: ours.evaluate(x, y),
            "",
            None,
        )
    for dim, similarity in ((128, "cosine"), (512, "cosine"), (512, "euclidean")):
        for noise in (0.2, 0.5, 1.0):
            x, y = classes_of(n, 100, 1.0, noise, dim)
            name = f"default metrics, 100 classes x {dim}, {similarity}, noise {noise}"
            yield (
                name,
                n * n,
                lambda x=x, y=y, s=similarity: ours.evaluate(x, y, similarity=s),
                "",
                None,
            )


def code_rows() -> Iterator[Row]:
    def of(n: int, queries: int, classes: int) -> tuple[np.ndarray, ...]:
        codes, labels = codes_of(n, classes)
        return codes[:queries], labels[:queries], codes[queries:], labels[queries:]

    few = of(60_000, 10_000, 10)

    def neighbours() -> Any:
        return ours.knn(few[0], few[2], 10, **CODES)

    for ties in ("index", "expected"):
        name = f"64-bit codes, 10,000 x 50,000, 10 classes, AP, ties {ties}"
        yield (
            name,
            5e8,
            lambda t=ties: ours.evaluate(*few, ties=t, **CODES, **AP),
            "knn",
            neighbours,
        )
    yield "the same, default metrics", 5e8, lambda: ours.evaluate(*few, **CODES), "", None
    many = of(133_000, 5_000, 100)
    name = "64-bit codes, 5,000 x 128,000, 100 classes, AP"
    yield name, 6.4e8, lambda: ours.evaluate(*many, **CODES, **AP), "", None
    for classes in (100, 500, 2000):
        codes, labels = codes_of(20_000, classes)
        name = f"20,000 codes of 64 bits, {classes} classes, AP"
        yield name, 4e8, lambda c=codes, y=labels: ours.evaluate(c, y, **CODES, **AP), "", None


def other_rows() -> Iterator[Row]:
    import faiss

    n = 20_000
    isotropic, _ = rows_of("isotropic", n, 2)
    two, labels = classes_of(n, 2, 0.3, 1.0)
    hundred = classes_of(n, 100, 0.0, 1.0)[1]
    for below in ("hardest", "easiest"):
        name = f"hard_negatives, k = 10, below {below}, isotropic"
        yield (
            name,
            n * n,
            lambda b=below: ours.hard_negatives(isotropic, hundred, 10, below=b),
            "",
            None,
        )
    yield (
        "hard_negatives, k = 10, 2 classes",
        n * n,
        lambda: ours.hard_negatives(two, labels, 10),
        "",
        None,
    )
    tight, _ = rows_of("one cluster", n, 2)
    for name, x in (("isotropic", isotropic), ("one tight cluster", tight)):
        yield f"verify, {name}", n * n / 2, lambda x=x: ours.verify(x, hundred), "", None
    unit = isotropic / np.linalg.norm(isotropic, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(128)
    index.add(unit)
    for k in (10, 100, 1000, 2048):
        yield (
            f"knn, k = {k}", n * n, lambda k=k: ours.knn(unit, None, k), "faiss",
            lambda k=k: index.search(unit, k)
        )  # fmt: skip
    million = np.random.default_rng(SEED).normal(size=(1_000_000, 128)).astype(np.float32)
    large = faiss.IndexFlatIP(128)
    large.add(million)
    for queries in (1, 10):
        yield (
            f"knn, {queries} queries, 1,000,000 items", queries * 1e6,
            lambda q=queries: ours.knn(million[:q], million, 10, similarity="dot"),
            "faiss", lambda q=queries: large.search(million[:q], 10),
        )  # fmt: skip
    small = faiss.IndexFlatIP(128)
    small.add(million[:100])
    yield (
        "knn, 200,000 queries, 100 items", 2e7,
        lambda: ours.knn(million[:200_000], million[:100], 10, similarity="dot"),
        "faiss", lambda: small.search(million[:200_000], 10),
    )  # fmt: skip

    def by_sklearn() -> Any:
        from sklearn.cluster import KMeans

        return KMeans(100, init="k-means++", n_init=1, max_iter=20, tol=0, random_state=SEED).fit(
            noisy
        )

    noisy, _ = classes_of(n, 100, 0.3, 1.0)
    yield (
        "k-means, 100 clusters, start and 20 rounds", 20 * n * 100,
        lambda: ours.kmeans(noisy, 100, max_iter=20), "scikit-learn", by_sklearn,
    )  # fmt: skip


def best_of(call: Callable[[], Any], times: int, clock: Callable[[], float]) -> float:
    best = float("inf")
    for _ in range(times):
        start = clock()
        call()
        best = min(best, clock() - start)
    return best


def print_rows(only: list[str], peers: bool) -> None:
    print(f"{'work':62} {'s':>7} {'ns a pair':>10}  peer")
    for rows in (retrieval_rows, code_rows, other_rows):
        for name, pairs, call, peer, by_peer in rows():
            if only and not any(text in name for text in only):
                continue
            seconds = best_of(call, 2, time.perf_counter)
            beside = ""
            if peers and by_peer is not None:
                beside = f"{peer} {best_of(by_peer, 2, time.perf_counter):.2f} s"
            print(f"{name:62} {seconds:7.2f} {1e9 * seconds / pairs:10.1f}  {beside}", flush=True)


def calls(kind: str, n: int) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Time all functions on a kind of data; yield the name, and the seconds per number of classes
    (`knn`: per k).
    """

    def timed(call: Callable[[], Any]) -> float:
        return best_of(call, 2, time.process_time)

    numbers = [2, 5, 20, 100, 500, n // 10, n // 2]
    of_classes = [(f"{c} classes", rows_of(kind, n, c)) for c in numbers]
    functions: dict[str, Callable[..., Any]] = {
        "default metrics": lambda x, y: ours.evaluate(x, y, threads=1),
        "AP": lambda x, y: ours.evaluate(x, y, threads=1, **AP),
        "hard_negatives": lambda x, y: ours.hard_negatives(x, y, 10, below="hardest", threads=1),
        "verify": lambda x, y: ours.verify(x, y, metrics="tar@far=1e-3", threads=1),
        "codes, default metrics": lambda x, y: ours.evaluate(
            ours.binarize(x), y, threads=1, **CODES
        ),
        "codes, AP": lambda x, y: ours.evaluate(ours.binarize(x), y, threads=1, **CODES, **AP),
    }
    for name, function in functions.items():
        yield name, [(label, timed(lambda f=function, r=rows: f(*r))) for label, rows in of_classes]
    x = of_classes[0][1][0]
    ks = (1, 10, 100, 1000, n // 4)
    yield "knn", [(f"k = {k}", timed(lambda k=k: ours.knn(x, None, k, threads=1))) for k in ks]


def scan(n: int) -> None:
    flagged = 0
    for kind in KINDS:
        for function, cells in calls(kind, n):
            line = []
            for i, (label, seconds) in enumerate(cells):
                beside = [cells[j][1] for j in (i - 1, i + 1) if 0 <= j < len(cells)]
                mark = "  <-" if seconds > 3 * min(beside) else ""
                flagged += bool(mark)
                line.append(f"{label} {1e9 * seconds / n / n:.1f}{mark}")
            print(f"{kind}, {function}: {', '.join(line)}", flush=True)
    print(f"{flagged} cells cost more than three times a neighbour (ns a pair of one thread)")


def curve(n: int, out: str) -> None:
    """Draw the cost per pair against the matches per query for average precision, of floats and of
    codes.
    """
    import matplotlib

    matplotlib.use("agg")
    import torch
    from matplotlib import pyplot

    torch.set_num_threads(1)
    matches = [1, 2, 5, 10, 20, 40, 100, 200, 500, 1000, n // 4, n // 2]
    lines: dict[str, list[float]] = {
        "128 floats, noisy": [],
        "128 floats, clustered": [],
        "64 bits": [],
        "torch": [],
    }
    for number in matches:
        classes = n // (number + 1) if number < n // 2 else 2
        noisy, clustered = (rows_of(kind, n, classes) for kind in ("noisy", "clustered"))
        codes = codes_of(n, classes)
        for name, call in (
            ("128 floats, noisy", lambda r=noisy: ours.evaluate(*r, threads=1, **AP)),
            ("128 floats, clustered", lambda r=clustered: ours.evaluate(*r, threads=1, **AP)),
            ("64 bits", lambda r=codes: ours.evaluate(*r, threads=1, **CODES, **AP)),
            ("torch", average_precision_by_torch(*noisy)),
        ):
            lines[name].append(1e9 * best_of(call, 2, time.process_time) / n / n)
            print(f"{number} matches, {name}: {lines[name][-1]:.1f} ns a pair", flush=True)
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, values in lines.items():
        axes.plot(
            matches, values, marker="o", label=name, linestyle="--" if name == "torch" else "-"
        )
    axes.set(
        xscale="log", yscale="log", xlabel="matches of a query", ylabel="ns a pair, one thread"
    )
    axes.set_title(f"All average precision, {n:,} items")
    axes.legend()
    figure.savefig(out, bbox_inches="tight", metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("rows", "scan", "curve"))
    parser.add_argument(
        "--only", nargs="*", default=[], help="only rows whose name has one of these texts"
    )
    parser.add_argument("--peers", action="store_true", help="time the peers, too")
    parser.add_argument("--kernel", help="a kernel to use instead of the fastest")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--out", default="curve.png")
    arguments = parser.parse_args()
    print(machine())
    if arguments.kernel:
        _native.begin_trial(kernel=arguments.kernel)
        print(f"kernel {arguments.kernel}")
    if arguments.what == "rows":
        print_rows(arguments.only, arguments.peers)
    elif arguments.what == "scan":
        scan(arguments.items)
    else:
        curve(arguments.items, arguments.out)


if __name__ == "__main__":
    main()
