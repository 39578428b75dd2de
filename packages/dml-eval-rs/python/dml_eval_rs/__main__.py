"""The command `dml-eval embeddings.npy labels.npy`: metrics of saved arrays, with numpy alone."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import __version__
from dml_eval_rs.clustering import AVERAGES
from dml_eval_rs.retrieval import SIMILARITIES, TIES, UNMATCHED, evaluate, evaluate_codes

# The options of metrics of the K nearest, but Recall@K → what each measures.
_BY_K = {
    "--precision-at": "precision@K, the share of matches among the K nearest",
    "--average-precision-at": "average precision of the K nearest",
    "--ndcg-at": "nDCG@K",
    "--recall-share-at": "the share of all matches that is among the K nearest",
    "--reciprocal-rank-at": "MRR@K",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return 0 on success, 2 for an error, 130 for Ctrl-C, 141 if nobody reads the output."""
    options = _parser().parse_args(_join_counts(sys.argv[1:] if argv is None else argv))
    try:
        arrays = [_load(path) for path in (options.embeddings, options.labels)]
        if options.gallery:
            arrays += [_load(path) for path in options.gallery]
        by_k = ("--recall-at", *_BY_K)
        extra: dict[str, Any] = {name: getattr(options, name) for name in map(_attribute, by_k)} | {
            "average_precision": options.average_precision,
            "groups": options.groups and _load(options.groups),
            "gallery_groups": options.gallery_groups and _load(options.gallery_groups),
            "unmatched": options.unmatched,
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
                nmi_average=options.nmi_average,
                seed=options.seed,
                **extra,
            )
    except (ValueError, TypeError, OSError) as error:
        print(f"dml-eval: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    try:
        print(json.dumps(result.to_dict(), indent=2) if options.json else result, flush=True)
    except OSError as error:
        # Python flushes the standard output once more at its end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        print(f"dml-eval: can't write the result: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _show(done: int, total: int) -> None:
    """Show the progress in percent on a terminal, and clear it at the end."""
    print("\r    \r" if done >= total else f"\r{done / total:4.0%}", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dml-eval",
        description="Exact retrieval metrics of saved embeddings, or of packed binary codes (uint8).",
    )
    parser.add_argument(
        "embeddings", type=Path, help="the queries, a .npy file: (n, dim) floats, or (n, bytes) uint8 codes"
    )
    parser.add_argument(
        "labels", type=Path, help="their labels, a .npy file: (n,) integers, booleans or strings"
    )
    parser.add_argument(
        "--gallery",
        nargs=2,
        type=Path,
        metavar=("EMBEDDINGS", "LABELS"),
        help="default: the queries, each leaving itself out",
    )
    parser.add_argument("--similarity", choices=SIMILARITIES, help="default: cosine")
    parser.add_argument(
        "--recall-at",
        type=_counts,
        default=[1, 10, 100, 1000],
        metavar="K [K ...]",
        help="default: 1 10 100 1000",
    )
    for name, measured in _BY_K.items():
        parser.add_argument(name, type=_counts, default=[], metavar="K [K ...]", help=measured)
    parser.add_argument(
        "--average-precision",
        action="store_true",
        help="mAP and mINP, which take every match's rank and so more time",
    )
    parser.add_argument(
        "--groups",
        type=Path,
        metavar="FILE",
        help="a .npy file, (n,): gallery items of the query's label and group, such as its camera, are left out",
    )
    parser.add_argument(
        "--gallery-groups", type=Path, metavar="FILE", help="the groups of the gallery, if there is one"
    )
    parser.add_argument(
        "--unmatched",
        choices=UNMATCHED,
        default="skip",
        help="what a query without a match counts as: nothing (skip, the default), or a miss (zero)",
    )
    parser.add_argument(
        "--ties",
        choices=TIES,
        default="index",
        help="order of equally similar items; default: index, the lower index first",
    )
    parser.add_argument(
        "--nmi",
        action="store_true",
        help="also cluster the embeddings, and compare the clusters with the labels: NMI, AMI and ARI",
    )
    parser.add_argument(
        "--nmi-average",
        choices=AVERAGES,
        default="arithmetic",
        help="average of the entropies in the NMI; default: arithmetic",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the clustering; default: 0")
    parser.add_argument("--threads", type=int, default=None, help="default: RAYON_NUM_THREADS, or all cores")
    parser.add_argument("--version", action="version", version=f"dml-eval {__version__}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _join_counts(argv: Sequence[str]) -> list[str]:
    """Join the numbers after ``--recall-at`` and its like: argparse would take files that follow for numbers, too."""
    joined: list[str] = []
    for word in argv:
        option, equals, _ = joined[-1].partition("=") if joined else ("", "", "")
        if word.isdecimal() and (option == "--recall-at" or option in _BY_K):
            joined[-1] += f",{word}" if equals else f"={word}"
        else:
            joined.append(word)
    return joined


def _attribute(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _counts(text: str) -> list[int]:
    """Read numbers separated by commas."""
    return [int(number) for number in text.split(",")]


_counts.__name__ = "number"  # in argparse's message


def _load(path: Path) -> npt.NDArray[Any]:
    """Map a .npy file without reading it; objects are never unpickled."""
    if not path.exists():
        raise ValueError(f"the file {path} doesn't exist; expected a .npy file")
    if not path.is_file():
        raise ValueError(f"{path} is no regular file; expected a .npy file, which is mapped into memory")
    with path.open("rb") as file:
        first = file.read(6)
    if first.startswith(b"PK"):
        raise ValueError(
            f"{path} is an archive of arrays; expected a .npy file: save one of its arrays with numpy.save"
        )
    if first not in (b"", b"\x93NUMPY"):  # an empty file is a damaged one
        raise ValueError(
            f"{path} is no .npy file; expected an array that numpy.save wrote: for a text file of a label a line, "
            "numpy.save('labels.npy', pathlib.Path('labels.txt').read_text().splitlines())"
        )
    try:
        loaded: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header makes numpy raise any of a dozen types
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise ValueError(
                f"{path} holds Python objects; expected numbers or strings: save array.astype(int) or "
                "array.astype(str) instead"
            ) from error
        raise ValueError(f"{path} is not an intact .npy file of numbers or strings: {error}") from error
    return loaded


if __name__ == "__main__":
    sys.exit(main())
