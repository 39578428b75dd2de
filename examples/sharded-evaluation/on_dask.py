"""Measure embeddings in shards on the workers of a Dask cluster.

python on_dask.py tcp://10.0.0.1:8786 labels.npy part-0.npy part-1.npy part-2.npy
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from distributed import Client

from dml_eval_rs import evaluate_shards


def main(address: str, labels: str, *shards: str) -> None:
    with Client(address) as client:

        def on_workers(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterable[Any]:
            # By default, Dask hashes all tasks to find duplicates; pure=False avoids this.
            return client.gather(client.map(function, list(tasks), pure=False))

        result = evaluate_shards(shards, np.load(labels), map=on_workers)
    print(json.dumps(result.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
