"""The data sets that a recipe's ``[dataset]`` table can name, and the loading of batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dml_core import DmlError, nearest
from dml_train.data.array_split import ArraySplit, Jitter
from dml_train.data.csv_table import read_csv_table
from dml_train.data.file_dataset import FileDataset, FileDatasetFactory
from dml_train.data.file_split import FileSplit
from dml_train.data.image_folder import read_image_folder
from dml_train.data.preparation import Preparation
from dml_train.data.published.cars196 import CARS196, read_cars196
from dml_train.data.published.checking import check_complete
from dml_train.data.published.cub import CUB, read_cub
from dml_train.data.published.fetching import fetch
from dml_train.data.published.in_shop import IN_SHOP, read_in_shop
from dml_train.data.published.market1501 import MARKET1501, read_market1501
from dml_train.data.published.official import OfficialSet
from dml_train.data.published.sop import SOP, read_sop
from dml_train.data.published.vehicleid import VEHICLEID, read_vehicleid
from dml_train.data.published.veri776 import VERI776, read_veri776

__all__ = [
    "OFFICIAL",
    "ArraySplit",
    "FileDataset",
    "FileDatasetFactory",
    "FileSplit",
    "Jitter",
    "OfficialSet",
    "Preparation",
    "check_dataset",
    "fetch_dataset",
    "read_cars196",
    "read_csv_table",
    "read_cub",
    "read_image_folder",
    "read_in_shop",
    "read_market1501",
    "read_sop",
    "read_vehicleid",
    "read_veri776",
]

OFFICIAL: dict[str, OfficialSet] = {
    official.name: official for official in (CUB, CARS196, SOP, IN_SHOP, MARKET1501, VERI776, VEHICLEID)
}


def check_dataset(
    name: str, root: str | Path, *, decode: bool = False, report: Callable[[str], None] = print
) -> bool:
    """Compare a published data set's counts with the published ones; return whether it is complete.

    Args:
        name: one of `OFFICIAL`.
        root: the data set's folder, or its parent.
        decode: whether to decode every image, too.
        report: called with each line.

    Raises:
        DmlError: an unknown name, or a `root` without the data set.
    """
    return check_complete(_official(name), Path(root), decode=decode, report=report)


def fetch_dataset(
    name: str, root: str | Path, *, progress: bool = False, report: Callable[[str], None] = print
) -> None:
    """Download and unpack a published data set, reusing existing files.

    Args:
        name: as in `check_dataset`.
        root: the folder for the archives and the unpacked folder, created if missing.
        progress: whether to show progress bars of downloads on the standard error.
        report: called with a line about each step.

    Raises:
        DmlError: an unknown name; a file that must be downloaded by hand; a download or an archive that is bad; an
            existing data set that is incomplete.
    """
    fetch(_official(name), Path(root), progress, report)


def _official(name: str) -> OfficialSet:
    if name not in OFFICIAL:
        raise DmlError(
            f"unknown data set {name!r}{nearest(name, OFFICIAL)} expected one of: {', '.join(OFFICIAL)}"
        )
    return OFFICIAL[name]
