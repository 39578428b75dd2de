"""PKU VehicleID: pictures of 26,267 vehicles by cameras of one city.

Source: Liu et al. 2016, Deep Relative Distance Learning: Tell the Difference Between Similar Vehicles.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet, parse_number, read_lines

Vehicles = Literal[800, 1600, 2400]

_LISTS = "train_test_split"
# Number of images per test list; one image per vehicle is in the gallery.
_IMAGES: Mapping[Vehicles, int] = {800: 6_493, 1600: 13_377, 2400: 19_777}


def _read_list(folder: Path, name: str) -> dict[str, list[Path]]:
    """Read a list; each line has the numbers of an image and a vehicle."""
    file = folder / _LISTS / name
    classes: dict[str, list[Path]] = {}
    for image, vehicle in read_lines(file, 2):
        parse_number(vehicle, file)
        classes.setdefault(vehicle, []).append(folder / "image" / f"{image}.jpg")
    return classes


def describe_vehicleid(vehicles: Vehicles, draw: int) -> OfficialSet:
    """Describe the data set with one test list and one draw of the gallery, see `read_vehicleid`."""

    def list_parts(folder: Path) -> Parts:
        queries: dict[str, list[Path]] = {}
        gallery: dict[str, list[Path]] = {}
        for vehicle, listed in _read_list(folder, f"test_list_{vehicles}.txt").items():
            files = sorted(listed)
            # The choice depends only on the draw and the vehicle's number.
            gallery[vehicle] = [files.pop(np.random.default_rng([draw, int(vehicle)]).integers(len(files)))]
            if files:
                queries[vehicle] = files
        return Parts(_read_list(folder, "train_list.txt"), queries, gallery)

    return OfficialSet(
        name="vehicleid",
        title="PKU VehicleID",
        markers=(f"{_LISTS}/train_list.txt",),
        list_parts=list_parts,
        published={
            "train": (113_346, 13_164),
            "test": (_IMAGES[vehicles] - vehicles, vehicles),
            "gallery": (vehicles, vehicles),
        },
        archives=(Archive("VehicleID_V1.0.zip", "size unpublished"),),
        by_hand=(
            "Its owners send it on request (https://pkuml.org/resources/pku-vehicleid.html); unpack the archive "
            "yourself, or put it into a folder as VehicleID_V1.0.zip and run dml data fetch vehicleid --root FOLDER"
        ),
    )


def read_vehicleid(root: str, vehicles: Vehicles = 2400, draw: int = 0) -> Parts:
    """Read PKU VehicleID in the official layout: ``image``, and ``train_test_split`` with the lists.

    One random image per test vehicle is in the gallery, and the others are queries; the paper repeats this ten times
    and averages. Draw d chooses the images with numpy's generator and the seed (d, vehicle). To follow the protocol,
    evaluate ten times with draws 0 to 9; a draw is the same everywhere.

    Args:
        root: the folder ``VehicleID_V1.0``, or its parent.
        vehicles: the test list: 800 (small), 1600 (medium) or 2400 (large) vehicles.
        draw: the number of the random gallery; raises a `ValueError` if negative.

    Raises:
        DmlError: if the data set is missing or incomplete.
    """
    if draw < 0:
        raise ValueError(f"draw is {draw}; expected at least 0")
    return describe_vehicleid(vehicles, draw).read(root)
