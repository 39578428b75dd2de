"""`dml-eval embeddings.npy labels.npy`: the metrics of two saved arrays, with numpy alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.retrieval import SIMILARITIES, TIES, evaluate, evaluate_codes


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 0 if all went well, 2 for bad input, 130 for Ctrl-C."""
    options = _parser().parse_args(argv)
    try:
        arrays = [_load(path) for path in (options.embeddings, options.labels)]
        if options.gallery:
            arrays += [_load(path) for path in options.gallery]
        extra: dict[str, Any] = {
            "recall_at": options.recall_at,
            "ties": options.ties,
            "threads": options.threads,
            "progress": _show if sys.stderr.isatty() else None,
        }
        if arrays[0].dtype == np.uint8:
            if options.nmi or options.similarity:
                raise ValueError(
                    f"{options.embeddings} holds binary codes, which are compared by their Hamming distance; "
                    "expected neither --nmi nor --similarity"
                )
            result = evaluate_codes(*arrays, **extra)
        else:
            result = evaluate(
                *arrays,
                similarity=options.similarity or "cosine",
                nmi=options.nmi,
                seed=options.seed,
                **extra,
            )
    except (ValueError, TypeError, OSError) as error:
        print(f"dml-eval: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result.to_dict(), indent=2) if options.json else result)
    return 0


def _show(done: int, total: int) -> None:
    """How far it is, on a terminal; gone from the line when all is done."""
    print("\r    \r" if done >= total else f"\r{done / total:4.0%}", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dml-eval",
        description="Exact retrieval metrics of saved embeddings, or of packed binary codes (uint8).",
    )
    parser.add_argument(
        "embeddings", type=Path, help="queries, a .npy file: (n, dim) floats, or (n, bytes) uint8 codes"
    )
    parser.add_argument("labels", type=Path, help="a .npy file: (n,) integers, booleans or strings")
    parser.add_argument(
        "--gallery",
        nargs=2,
        type=Path,
        metavar=("EMBEDDINGS", "LABELS"),
        help="default: the queries, each without itself",
    )
    parser.add_argument("--similarity", choices=SIMILARITIES, help="default: cosine")
    parser.add_argument(
        "--recall-at",
        type=int,
        nargs="+",
        default=[1, 10, 100, 1000],
        metavar="K",
        help="default: 1 10 100 1000",
    )
    parser.add_argument(
        "--ties", choices=TIES, default="index", help="of equal items; default: index, the first comes first"
    )
    parser.add_argument("--nmi", action="store_true", help="cluster as well, and compare with the labels")
    parser.add_argument("--seed", type=int, default=0, help="of the clustering")
    parser.add_argument("--threads", type=int, default=None, help="default: all cores")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _load(path: Path) -> npt.NDArray[Any]:
    """A .npy file, mapped and not read; objects are never unpickled."""
    try:
        loaded: npt.NDArray[Any] | np.lib.npyio.NpzFile = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is not a whole .npy file of numbers or strings: {error}") from error
    if isinstance(loaded, np.lib.npyio.NpzFile):
        loaded.close()
        raise ValueError(
            f"{path} is an archive of arrays; expected a .npy file: numpy.save writes one array of it"
        )
    return loaded


if __name__ == "__main__":
    sys.exit(main())
