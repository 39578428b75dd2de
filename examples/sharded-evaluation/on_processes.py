"""Measure embeddings in shards with processes on a single machine.

python on_processes.py 4 labels.npy part-0.npy part-1.npy part-2.npy
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from dml_eval_rs import evaluate_shards


def main(processes: str, labels: str, *shards: str) -> None:
    with ProcessPoolExecutor(int(processes)) as executor:
        result = evaluate_shards(shards, np.load(labels), map=executor.map)
    print(json.dumps(result.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
