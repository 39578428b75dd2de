"""PKU VehicleID: pictures of 26,267 vehicles by cameras of one city (Liu et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from dml_train.data.parts import Classes, Parts
from dml_train.data.published.official import (
    Archive,
    OfficialSet,
    PublishedCounts,
    parse_number,
    read_lines,
)

Vehicles = Literal[800, 1600, 2400]

_LISTS = "train_test_split"
# The images of each test list; one of each vehicle is in the gallery.
_IMAGES: Mapping[Vehicles, int] = {800: 6_493, 1600: 13_377, 2400: 19_777}


def _read_list(folder: Path, name: str) -> dict[str, list[Path]]:
    """Read a list of lines with an image's number and its vehicle's."""
    file = folder / _LISTS / name
    classes: dict[str, list[Path]] = {}
    for image, vehicle in read_lines(file, 2):
        parse_number(vehicle, file)
        classes.setdefault(vehicle, []).append(folder / "image" / f"{image}.jpg")
    return classes


def _draw_gallery(classes: Classes, draw: int) -> tuple[Classes, Classes]:
    """Return queries, and a gallery of one image of each vehicle: a function of the draw and the vehicle's number."""
    queries: dict[str, list[Path]] = {}
    gallery: dict[str, list[Path]] = {}
    for vehicle, listed in classes.items():
        files = sorted(listed)
        chosen = int(np.random.default_rng([draw, int(vehicle)]).integers(len(files)))
        gallery[vehicle] = [files[chosen]]
        if len(files) > 1:
            queries[vehicle] = files[:chosen] + files[chosen + 1 :]
    return queries, gallery


def describe_vehicleid(vehicles: Vehicles, draw: int) -> OfficialSet:
    """Describe the data set with one of its test lists, and one draw of the gallery."""

    def list_parts(folder: Path) -> Parts:
        test = _read_list(folder, f"test_list_{vehicles}.txt")
        return Parts(_read_list(folder, "train_list.txt"), *_draw_gallery(test, draw))

    return OfficialSet(
        name="vehicleid",
        title="PKU VehicleID",
        markers=(f"{_LISTS}/train_list.txt",),
        list_parts=list_parts,
        published={
            "train": PublishedCounts(113_346, 13_164),
            "test": PublishedCounts(_IMAGES[vehicles] - vehicles, vehicles),
            "gallery": PublishedCounts(vehicles, vehicles),
        },
        archives=(Archive("VehicleID_V1.0.zip", "size unpublished"),),
        by_hand=(
            "Its owners send it on request (https://pkuml.org/resources/pku-vehicleid.html); unpack the archive "
            "yourself, or put it into a folder as VehicleID_V1.0.zip and run dml data fetch vehicleid --root FOLDER"
        ),
    )


VEHICLEID = describe_vehicleid(2400, 0)


def read_vehicleid(root: str, vehicles: Vehicles = 2400, draw: int = 0) -> Parts:
    """Read PKU VehicleID in its official layout: ``image``, and ``train_test_split`` with its lists.

    113,346 images of 13,164 vehicles train. Of each test vehicle one random image is the gallery, and the others are
    queries; the paper repeats this ten times and averages. Here draw d chooses the images by numpy's generator with the
    seed (d, vehicle), so ten runs of the evaluation with draws 0 to 9 follow the protocol, and a draw is the same
    everywhere.

    Source: Liu et al. 2016, Deep Relative Distance Learning: Tell the Difference Between Similar Vehicles.

    Args:
        root: the folder ``VehicleID_V1.0``, or its parent.
        vehicles: the test list: 800 (small), 1600 (medium) or 2400 (large) vehicles.
        draw: the number of the random gallery, at least 0.

    Raises:
        DmlError: if it is missing or incomplete.
        ValueError: for another number of vehicles, or a negative draw.
    """
    if vehicles not in get_args(Vehicles):
        raise ValueError(f"vehicles is {vehicles!r}; expected 800, 1600 or 2400")
    if isinstance(draw, bool) or not isinstance(draw, int) or draw < 0:
        raise ValueError(f"draw is {draw!r}; expected an integer of at least 0")
    return describe_vehicleid(vehicles, draw).read(root)
