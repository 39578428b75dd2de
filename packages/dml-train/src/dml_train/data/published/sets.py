"""Look up published data sets by name, and check that a data set is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dml_core import DmlError, nearest
from dml_train.data.bad_images import find_bad_images
from dml_train.data.decoding import read_image
from dml_train.data.published.cars196 import CARS196
from dml_train.data.published.listed import CUB, IN_SHOP, SOP
from dml_train.data.published.official import OfficialSet, list_missing
from dml_train.data.published.reidentification import MARKET1501, VERI776, describe_vehicleid

OFFICIAL: dict[str, OfficialSet] = {
    official.name: official
    for official in (CUB, CARS196, SOP, IN_SHOP, MARKET1501, VERI776, describe_vehicleid(2400, 0))
}
_MAX_LISTED = 10  # files listed by name; the others are counted


def get_official(name: str) -> OfficialSet:
    """Look up a published data set, or raise a `DmlError` with the known names."""
    if name not in OFFICIAL:
        raise DmlError(
            f"unknown data set {name!r}{nearest(name, OFFICIAL)} expected one of: "
            f"{', '.join(OFFICIAL)}"
        )
    return OFFICIAL[name]


def check_dataset(
    name: str, root: str | Path, *, decode: bool = False, report: Callable[[str], None] = print
) -> bool:
    """Compare a data set's counts with the published counts; return whether the data set is
    complete.

    A data set is also incomplete if lists are missing, damaged or contradictory.

    Args:
        name: ``"cub"``, ``"cars196"``, ``"sop"``, ``"in-shop"``, ``"market1501"``, ``"veri776"`` or
            ``"vehicleid"``.
        root: the data set's folder, or the parent folder; raises a `DmlError` if it lacks the data
            set.
        decode: whether to also decode all images.
        report: called with the lines of the report.
    """
    official = get_official(name)
    folder = official.find(Path(root))
    report(f"{official.title} in {folder}")
    try:
        parts = official.list_parts(folder)
    except DmlError as error:
        report(f"incomplete: {error}")
        return False
    missing = list_missing(parts)
    absent = {*missing}
    report(f"{'':<10}{'images':>10}{'classes':>10}{'published:':>14}{'images':>10}{'classes':>10}")
    for part, classes in parts.by_name().items():
        present = sum(file not in absent for files in classes.values() for file in files)
        images, count = official.published[part]
        report(f"{part:<10}{present:>10,}{len(classes):>10,}{'':>14}{images:>10,}{count:>10,}")
    wrong = official.find_wrong_counts(parts)
    for difference in wrong:
        report(f"wrong count: {difference}")
    _report_some("missing", [*map(str, missing)], report)
    bad = {}
    if decode:
        bad = find_bad_images(
            [f for f in parts.files() if f not in absent], read_image, "decode images"
        )
        _report_some("bad", [*bad.values()], report)
    if wrong or missing or bad:
        total = sum(1 for _ in parts.files())
        report(
            f"incomplete: {len(missing):,} of {total:,} images "
            f"missing{f', {len(bad):,} bad' if decode else ''}"
        )
        return False
    report(f"complete{': every image can be decoded' if decode else ''}")
    return True


def _report_some(kind: str, entries: Sequence[str], report: Callable[[str], None]) -> None:
    for entry in entries[:_MAX_LISTED]:
        report(f"{kind}: {entry}")
    if len(entries) > _MAX_LISTED:
        report(f"{kind}: {len(entries) - _MAX_LISTED:,} more")
