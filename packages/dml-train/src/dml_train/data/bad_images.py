"""Before training, find image files that can't be decoded, and report or drop these files."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from rich.console import Console

from dml_core import DmlError
from dml_train.data.parts import Classes, Parts
from dml_train.data.stored import Item
from dml_train.progress import stage
from dml_train.ranks.environment import is_first_process

Read = TypeVar("Read")

_LOG = logging.getLogger("dml_train.data")
_MAX_LISTED = 5  # bad files in a message
_CHUNK = 16  # files that a thread reads per call
_MIN_SHOWN = 2_000  # files; if there are fewer, a progress bar isn't shown


def read_all(
    files: Sequence[Item], read: Callable[[Item], Read], stage_name: str
) -> Iterator[tuple[Item, Read | DmlError]]:
    """Read images in parallel threads, and yield the images in order, with the result of `read` or
    the `DmlError`.

    Raise a `DmlError` if a file is missing, or the disk fails to read a file. The progress is shown
    as `stage_name`.
    """

    def read_chunk(chunk: Sequence[Item]) -> list[Read | DmlError]:
        results: list[Read | DmlError] = []
        for file in chunk:
            try:
                results.append(read(file))
            except DmlError as error:
                results.append(error)
        return results

    workers = os.cpu_count() or 1
    quiet = len(files) < _MIN_SHOWN or not is_first_process()
    chunks = (files[begin : begin + _CHUNK] for begin in range(0, len(files), _CHUNK))
    done = 0
    with (
        ThreadPoolExecutor(workers) as pool,
        stage(Console(stderr=True, quiet=quiet), stage_name, len(files)) as show,
    ):
        pending = deque(pool.submit(read_chunk, chunk) for chunk in islice(chunks, 4 * workers))
        while pending:
            for result in pending.popleft().result():
                if (
                    isinstance(result, DmlError)
                    and getattr(result.__cause__, "errno", None) is not None
                ):
                    raise result  # the file is missing or the disk fails: not a bad image
                yield files[done], result
                done += 1
            pending.extend(pool.submit(read_chunk, chunk) for chunk in islice(chunks, 1))
            show(done, "")


def find_bad_images(
    files: Sequence[Item], read: Callable[[Item], object], stage_name: str
) -> dict[Item, str]:
    """Call `read` for each file, and return the files that raise a `DmlError`, with the
    messages.
    """
    results = read_all(files, read, stage_name)
    return {file: str(result) for file, result in results if isinstance(result, DmlError)}


def check_bad_images(bad: Mapping[Item, str]) -> None:
    """Raise a `DmlError` that lists the bad files, if there are any."""
    if bad:
        total = f"\n{len(bad):,} files are bad in total" if len(bad) > 1 else ""
        listed = "\n".join(islice(bad.values(), _MAX_LISTED))
        raise DmlError(f"{listed}{total}\n(on_bad_image = 'skip' omits such files)")


def drop_bad_images(parts: Parts, bad: Mapping[Item, str]) -> Parts:
    """Drop bad files, and classes that contain only bad files, and log both.

    Raise a `DmlError` if a part loses all images.
    """
    if not bad:
        return parts
    kept: dict[str, Classes] = {}
    for part, classes in parts.by_name().items():
        good = {
            name: [file for file in files if file not in bad] for name, files in classes.items()
        }
        kept[part] = {name: files for name, files in good.items() if files}
    if is_first_process():
        lost = {
            c
            for name, classes in parts.by_name().items()
            for c in classes.keys() - kept[name].keys()
        }
        count = f"{len(bad):,} of {sum(1 for _ in parts.files()):,} images that can't be decoded"
        classes_too = f", and {len(lost):,} classes without other images" if lost else ""
        listed = [*islice(bad.values(), _MAX_LISTED), *(["…"] if len(bad) > _MAX_LISTED else [])]
        _LOG.warning("omitted %s%s:\n%s", count, classes_too, "\n".join(listed))
    for name, classes in kept.items():
        if not classes:
            raise DmlError(
                f"none of the {name} images can be decoded, e.g. {next(iter(bad.values()))}"
            )
    return parts._replace(train=kept["train"], test=kept["test"], gallery=kept.get("gallery"))
