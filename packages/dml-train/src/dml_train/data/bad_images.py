"""Which image files can't be used, found before training begins, and what is said of them."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from dml_core import DmlError
from dml_train.data.parts import Classes, Parts
from dml_train.progress import stage
from dml_train.ranks.ranks import is_first_process

Read = TypeVar("Read")

_LOG = logging.getLogger("dml_train.data")
_NAMED = 5  # bad files that a message names
_CHUNK = 16  # files that a thread reads at a time
_SHOWN = 2_000  # files from which on it is shown how many are done


def read_all(
    files: Sequence[Path], read: Callable[[Path], Read], what: str
) -> Iterator[tuple[Path, Read | DmlError]]:
    """Each file with what `read` gives, or with its `DmlError`, in their order; several are read at a time.

    Args:
        files: which.
        read: called in threads.
        what: the stage's name, for the progress that is shown.

    Raises:
        DmlError: a file that isn't there, or that the disk refuses to read.
    """
    workers = os.cpu_count() or 1
    quiet = len(files) < _SHOWN or not is_first_process()
    chunks = (files[begin : begin + _CHUNK] for begin in range(0, len(files), _CHUNK))
    done = 0
    with (
        ThreadPoolExecutor(workers) as pool,
        stage(Console(stderr=True, quiet=quiet), what, len(files)) as show,
    ):
        ahead = deque(pool.submit(_read_some, chunk, read) for chunk in islice(chunks, 4 * workers))
        while ahead:
            for file, result in ahead.popleft().result():
                if isinstance(result, DmlError) and getattr(result.__cause__, "errno", None) is not None:
                    raise result  # the file isn't there, or the disk fails: nothing that an image is to blame for
                yield file, result
                done += 1
            ahead.extend(pool.submit(_read_some, chunk, read) for chunk in islice(chunks, 1))
            show(done, "")


def _read_some(files: Sequence[Path], read: Callable[[Path], Read]) -> list[tuple[Path, Read | DmlError]]:
    results: list[tuple[Path, Read | DmlError]] = []
    for file in files:
        try:
            results.append((file, read(file)))
        except DmlError as error:
            results.append((file, error))
    return results


def find_bad(files: Sequence[Path], read: Callable[[Path], object], what: str) -> dict[Path, str]:
    """The files that `read` refuses, with its reasons."""
    return {file: str(result) for file, result in read_all(files, read, what) if isinstance(result, DmlError)}


def refuse(bad: Mapping[Path, str]) -> None:
    """Say which files are bad, and stop.

    Raises:
        DmlError: if any are.
    """
    if bad:
        others = f"\n{len(bad):,} files are bad in all" if len(bad) > 1 else ""
        raise DmlError(
            "\n".join(islice(bad.values(), _NAMED))
            + others
            + "\n(on_bad_image = 'skip' leaves such files out)"
        )


def without(parts: Parts, bad: Mapping[Path, str]) -> Parts:
    """The parts without the bad files, and without classes that have no other; it is logged what was left out.

    Raises:
        DmlError: if a part is left without images.
    """
    if not bad:
        return parts
    left = {name: _left(classes, bad) for name, classes in parts.named().items()}
    if is_first_process():
        gone = {c for name, classes in parts.named().items() for c in classes.keys() - left[name].keys()}
        total = sum(len(files) for classes in parts.named().values() for files in classes.values())
        _LOG.warning(
            "left out %s of %s images%s, which can't be decoded:\n%s%s",
            f"{len(bad):,}",
            f"{total:,}",
            f" and {len(gone):,} classes without any other" if gone else "",
            "\n".join(islice(bad.values(), _NAMED)),
            "\n…" if len(bad) > _NAMED else "",
        )
    for name, classes in left.items():
        if not classes:
            raise DmlError(f"none of the {name} images can be decoded, e.g. {next(iter(bad.values()))}")
    return Parts(**left)


def _left(classes: Classes, bad: Mapping[Path, str]) -> Classes:
    kept = {name: [file for file in files if file not in bad] for name, files in classes.items()}
    return {name: files for name, files in kept.items() if files}
