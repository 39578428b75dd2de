"""The check that a published data set is complete: its counts beside the published ones, and missing images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dml_core import DmlError
from dml_train.data.bad_images import find_bad_images
from dml_train.data.decoding import read_image
from dml_train.data.parts import count_images
from dml_train.data.published.official import OfficialSet, list_missing

_MAX_LISTED = 10  # files listed by name; of the others, the number is reported


def check_complete(official: OfficialSet, root: Path, *, decode: bool, report: Callable[[str], None]) -> bool:
    """Report a data set's counts and missing images, and return whether it is the complete published one.

    A data set whose lists are missing, damaged or contradictory is incomplete, too.

    Args:
        official: the data set.
        root: its folder, or the parent of its folder.
        decode: whether to decode every image, too.
        report: called with each line.

    Raises:
        DmlError: if `root` doesn't contain the data set.
    """
    folder = official.find(root)
    report(f"{official.title} in {folder}")
    try:
        parts = official.list_parts(folder)
    except DmlError as error:
        report(f"incomplete: {error}")
        return False
    missing = list_missing(parts)
    absent = {*missing}
    report(f"{'':<10}{'images':>10}{'classes':>10}{'published:':>14}{'images':>10}{'classes':>10}")
    for name, classes in parts.by_name().items():
        present = sum(file not in absent for files in classes.values() for file in files)
        published = official.published[name]
        report(
            f"{name:<10}{present:>10,}{len(classes):>10,}{'':>14}{published.images:>10,}{published.classes:>10,}"
        )
    wrong = official.find_wrong_counts(parts)
    for difference in wrong:
        report(f"wrong count: the list of {difference}")
    _report_some("missing", [str(file) for file in missing], report)
    bad: dict[Path, str] = {}
    if decode:
        files = [f for classes in parts.by_name().values() for of_class in classes.values() for f in of_class]
        bad = find_bad_images([file for file in files if file not in absent], read_image, "decode images")
        _report_some("bad", [*bad.values()], report)
    complete = not (wrong or missing or bad)
    total = sum(map(count_images, parts.by_name().values()))
    if complete:
        report(f"complete{': every image can be decoded' if decode else ''}")
    else:
        report(
            f"incomplete: {len(missing):,} of {total:,} images missing{f', {len(bad):,} bad' if decode else ''}"
        )
    return complete


def _report_some(kind: str, entries: list[str], report: Callable[[str], None]) -> None:
    for entry in entries[:_MAX_LISTED]:
        report(f"{kind}: {entry}")
    if len(entries) > _MAX_LISTED:
        report(f"{kind}: {len(entries) - _MAX_LISTED:,} more")
