"""The command `dml-eval`, to measure saved arrays, to write ground truth, and to measure an index;
needs only numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_eval_rs.inputs.arguments import COSINE, SIMILARITIES, TIES, UNMATCHED
from dml_eval_rs.inputs.files import load_array
from dml_eval_rs.metrics.names import DEFAULT, METRICS

if TYPE_CHECKING:
    from dml_eval_rs.metrics.evaluation import Evaluation
    from dml_eval_rs.metrics.tables import Tabular

_FORMATS = ("table", "markdown", "latex", "csv", "json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 2 if it fails, 130 after Ctrl-C, or 141 if the output's reader
    closes the pipe.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words[:1] in (["truth"], ["index"]) else None
    options = _parser(command).parse_args(words)
    options.progress = _show if sys.stderr.isatty() else None
    warnings.showwarning = _warn
    try:
        found: Tabular | str = options.run(options)
        text = found if isinstance(found, str) else _write(found, options.format)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"dml-eval: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    try:
        print(text, flush=True)
    except OSError as error:
        # Python will flush standard output again when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        print(f"dml-eval: can't write the result: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _measure_all(options: argparse.Namespace) -> Tabular:
    """Measure one or two files of embeddings."""
    paths = [path for path in (options.embeddings, options.compare) if path]
    results = {str(path): _measure(path, options) for path in paths}
    if options.compare:
        from dml_eval_rs.metrics.comparison import compare

        return compare(results)
    return results[str(options.embeddings)]


def _measure(embeddings: Path, options: argparse.Namespace) -> Evaluation:
    """Measure a file of embeddings."""
    from dml_eval_rs.evaluators import measure_all
    from dml_eval_rs.matches.labels import Labels

    special: dict[str, Any] = {
        "junk": _label(options.junk),
        "distractors": _label(options.distractors),
    }
    labels = Labels(
        _load(options.labels), _load(options.groups), **({} if options.gallery else special)
    )
    gallery = gallery_labels = None
    if options.gallery:
        gallery, ids = map(_load, options.gallery)
        gallery_labels = Labels(ids, _load(options.gallery_groups), **special)
    elif options.gallery_groups:
        raise ValueError(
            "--gallery-groups is given without --gallery; expected both, or only --groups"
        )
    names = "similarity", "ties", "unmatched", "seed", "threads", "progress"
    chosen: Any = {name: getattr(options, name) for name in names}
    chosen["metrics"] = options.metric or DEFAULT
    return measure_all(_load(embeddings), labels, gallery, gallery_labels, **chosen)


def _write(found: Tabular, form: str) -> str:
    if form == "json":
        return json.dumps(found.to_dict(), indent=2)
    return str(found) if form == "table" else str(getattr(found, f"to_{form}")()).removesuffix("\n")


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(f"dml-eval: warning: {message}", file=sys.stderr)


def _show(done: int, total: int) -> None:
    """Show progress in percent on a terminal, and finally clear it."""
    print(
        "\r    \r" if done >= total else f"\r{done / total:4.0%}",
        end="",
        file=sys.stderr,
        flush=True,
    )


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=" ".join(filter(None, ("dml-eval", command))))
    if command is None:
        _add_evaluation(parser)
    else:
        from dml_eval_rs.shards.ground_truth import add_index, add_truth

        (add_truth if command == "truth" else add_index)(parser)
    add = parser.add_argument
    add("--similarity", choices=SIMILARITIES, default=COSINE, help="default: cosine")
    if command != "truth":
        add("--format", choices=_FORMATS, default="table", help="default: table")
    add("--threads", type=int, help="default: RAYON_NUM_THREADS, or all cores")
    version = sys.modules["dml_eval_rs"].__version__
    add(
        "--version",
        action="version",
        version=f"dml-eval {version}",
        help="show the version and exit",
    )
    return parser


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Exact metrics of saved embeddings, or of packed binary codes (uint8, --similarity "
        "hamming)."
    )
    parser.epilog = (
        "dml-eval truth and dml-eval index, with --help: exact neighbours, and the recall of an "
        "index."
    )
    add = parser.add_argument
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    labels: dict[str, Any] = {"action": "append", "metavar": "LABEL"}
    names, default = ", ".join(METRICS), ", ".join(DEFAULT)
    add(
        "embeddings",
        type=Path,
        help="the queries, a .npy file: (n, dim) floats, or (n, bytes) uint8 codes",
    )
    add(
        "labels",
        type=Path,
        help="the queries' labels, a .npy file: (n,) integers, booleans or strings",
    )
    add(
        "--metric",
        action="append",
        metavar="NAME",
        help=f"can be repeated: {names}; default: {default}",
    )
    add(
        "--gallery",
        nargs=2,
        type=Path,
        metavar=("EMBEDDINGS", "LABELS"),
        help="default: the queries",
    )
    grouped = "exclude gallery items with the query's label and group, for example its camera"
    add("--groups", **file, help=f"a .npy file, (n,): {grouped}")
    add("--gallery-groups", **file, help="the gallery's groups, to be used with --gallery")
    add("--junk", **labels, help="exclude items with this label; can be repeated")
    add(
        "--distractors",
        **labels,
        help="rank items with this label, but never as matches; can be repeated",
    )
    unmatched = "skip queries that have no match (default), or count them as 0"
    add("--unmatched", choices=UNMATCHED, default="skip", help=unmatched)
    ties = "how to order equally similar items; default: index, the lower first"
    add("--ties", choices=TIES, default="index", help=ties)
    add("--compare", **file, help="embeddings of a second model, to be compared by a paired test")
    add("--seed", type=int, default=0, help="seed for the clustering; default: 0")
    parser.set_defaults(run=_measure_all)


def _label(texts: list[str] | None) -> list[int] | list[str]:
    """Read labels from the command line: as integers if possible, like the labels in the file."""
    try:
        return [int(text) for text in texts or ()]
    except ValueError:
        return texts or []


def _load(path: Path | None) -> Any:
    """Load an array; return None if a path is not given."""
    return None if path is None else load_array(path)


if __name__ == "__main__":
    sys.exit(main())
