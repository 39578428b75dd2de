"""Time mteb's default search, the exact search, and indices in mteb's wrapper.

    python benchmarks/evaluator/mteb_search.py [--documents 100000] [--dim 384] [--queries 1000]

The embeddings are random and ready, and texts are not loaded. Each search has a new process. Times
are processor time of all threads, the minimum of three runs (of one run if it is slow). Memory is
the peak during the first run, which includes the documents' embeddings and the results.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from compare import machine
from datasets import Dataset
from mteb.models import search_wrappers
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.models.search_encoder_index import FaissSearchIndex
from truth import peak_of

from dml_eval_rs.adapters.mteb import ExactSearchIndex, SearchEncoderWrapper

TIMES, SLOW = 3, 20.0  # runs, and the seconds of a run that is not repeated
TOP_K = 1000  # mteb's
Theirs = search_wrappers.SearchEncoderWrapper
SEARCHES: dict[str, Callable[[Any], Any]] = {
    "mteb's default search": Theirs,
    "SearchEncoderWrapper of dml-eval-rs": SearchEncoderWrapper,
    "mteb's wrapper, FaissSearchIndex": lambda model: Theirs(
        model, index_backend=FaissSearchIndex(model)
    ),
    "mteb's wrapper, ExactSearchIndex": lambda model: Theirs(
        model, index_backend=ExactSearchIndex(model)
    ),
}


class Table(AbsEncoder):
    """An encoder that looks embeddings up by row."""

    def __init__(self, embeddings: np.ndarray) -> None:
        self.embeddings = embeddings
        stated = {"name": "own/table", "similarity_fn_name": ScoringFunction.COSINE}
        self.mteb_model_meta = ModelMeta.create_empty(stated)

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        """Return the rows of a data set."""
        return self.embeddings[inputs["row"][:]]


def rows(name: str, first: int, last: int) -> Dataset:
    """Make a data set of ids and rows."""
    return Dataset.from_dict(
        {"id": [f"{name}{row}" for row in range(first, last)], "row": range(first, last)}
    )


def measure(name: str, n_documents: int, dim: int, n_queries: int) -> tuple[float, float, Any]:
    """Return the time, the memory in MiB, and the documents that each query finds."""
    search_wrappers.create_dataloader = lambda data, **_: data
    n, shape = n_documents, (n_documents + n_queries, dim)
    model = Table(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    documents, queries = rows("d", 0, n), rows("q", n, n + n_queries)
    space: Any = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    space["encode_kwargs"] = {"show_progress_bar": False}
    found: dict[str, Any] = {}
    times: list[float] = []

    def search() -> None:
        wrapper, start = SEARCHES[name](model), time.process_time()
        wrapper.index(documents, **space)
        found.update(wrapper.search(queries, top_k=TOP_K, **space))
        times.append(time.process_time() - start)

    before = peak_of(lambda: time.sleep(0.1))
    peak = peak_of(search)
    while len(times) < TIMES and times[-1] < SLOW:
        search()
    return min(times), peak - before, {query: set(scores) for query, scores in found.items()}


def main() -> None:
    """Read the arguments, and measure the searches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=1_000)
    options = parser.parse_args()
    print(machine())
    packages = ("mteb", "datasets", "torch", "faiss-cpu")
    print(", ".join(f"{name} {version(name)}" for name in packages))
    sizes = options.documents, options.dim, options.queries
    print(f"{sizes[0]:,} documents x {sizes[1]}, {sizes[2]:,} queries, top_k = {TOP_K:,}")
    right: Any = None
    for name in SEARCHES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            took, memory, found = pool.apply(measure, (name, *sizes))
        right = right or found
        same = np.mean([found[query] == right[query] for query in right])
        print(
            f"{name:<36} {took:7.2f} s {memory:5.0f} MiB, the documents of mteb's search for "
            f"{same:.1%} of the queries",
            flush=True,
        )


if __name__ == "__main__":
    main()
