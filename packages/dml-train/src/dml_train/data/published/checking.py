"""Whether a published data set is whole: its counts beside the published ones, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dml_core import DmlError
from dml_train.data.bad_images import find_bad
from dml_train.data.decoding import read_image
from dml_train.data.parts import count
from dml_train.data.published.official import OfficialSet, missing_files

_NAMED = 10  # files that are named; of the others it is said how many they are


def check_whole(official: OfficialSet, root: Path, *, decode: bool, say: Callable[[str], None]) -> bool:
    """Count a data set, say what is there and what isn't, and return whether it is the published one.

    One whose lists are missing, damaged or contradict one another isn't, like one that lacks images.

    Args:
        official: which.
        root: its folder, or the one that holds it.
        decode: whether every image is decoded, too.
        say: told each line.

    Raises:
        DmlError: if there is none in `root`.
    """
    folder = official.find(root)
    say(f"{official.title} in {folder}")
    try:
        parts = official.list_parts(folder)
    except DmlError as error:
        say(f"not whole: {error}")
        return False
    absent = missing_files(parts)
    gone = {*absent}
    say(f"{'':<10}{'images':>10}{'classes':>10}{'published:':>14}{'images':>10}{'classes':>10}")
    for name, classes in parts.named().items():
        there = sum(file not in gone for files in classes.values() for file in files)
        published = official.published[name]
        say(
            f"{name:<10}{there:>10,}{len(classes):>10,}{'':>14}{published.images:>10,}{published.classes:>10,}"
        )
    wrong = official.differences(parts)
    for difference in wrong:
        say(f"differs: the list of {difference}")
    _name_some("missing", [str(file) for file in absent], say)
    bad: dict[Path, str] = {}
    if decode:
        files = [f for classes in parts.named().values() for of_class in classes.values() for f in of_class]
        bad = find_bad([file for file in files if file not in gone], read_image, "decode images")
        _name_some("bad", [*bad.values()], say)
    whole = not (wrong or absent or bad)
    total = sum(map(count, parts.named().values()))
    if whole:
        say(f"whole{': every image can be decoded' if decode else ''}")
    else:
        say(
            f"not whole: {len(absent):,} of {total:,} images missing{f', {len(bad):,} bad' if decode else ''}"
        )
    return whole


def _name_some(what: str, entries: list[str], say: Callable[[str], None]) -> None:
    for entry in entries[:_NAMED]:
        say(f"{what}: {entry}")
    if len(entries) > _NAMED:
        say(f"{what}: {len(entries) - _NAMED:,} more")
