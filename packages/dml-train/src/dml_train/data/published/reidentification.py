"""Market-1501, VeRi-776 and PKU VehicleID: persons seen by six cameras, vehicles by 20, and 26,267
vehicles of a city.

A file's name contains identity and camera: ``0002_c1s1_000451_03.jpg`` in Market-1501,
``0001_c001_00016450_0.jpg`` in VeRi-776. The cameras are groups, so that a query's ranking excludes
images with the query's identity and camera, also the copy of the query in VeRi-776's gallery.

Source: Zheng et al. 2015, Scalable Person Re-identification: A Benchmark; Liu et al. 2016, A Deep
Learning-Based Approach to Progressive Vehicle Re-identification; Liu et al. 2016, Deep Relative
Distance Learning: Tell the Difference Between Similar Vehicles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet, parse_number, read_lines

Vehicles = Literal[800, 1600, 2400]

_LISTS = "train_test_split"  # PKU VehicleID's folder of lists
# The number of images per test list; an image per vehicle is in the gallery.
_IMAGES: Mapping[Vehicles, int] = {800: 6_493, 1600: 13_377, 2400: 19_777}
_NAME = re.compile(r"(?P<identity>-1|\d+)_(?P<camera>c\d+)")
# Boxes in Market-1501 that are neither good nor bad, and should be ignored. Keep the distractors,
# 0000: they match nobody and are an additional class in the gallery.
_JUNK = "-1"


def _list_parts(folder: Path, names: Mapping[str, str]) -> Parts:
    """List the images per part; `names` maps a part to a folder."""
    parts: dict[str, dict[str, list[Path]]] = {part: {} for part in names}
    groups: dict[Path, str] = {}
    for part, name in names.items():
        try:
            files = sorted(
                file for file in (folder / name).iterdir() if file.suffix.lower() == ".jpg"
            )
        except OSError as error:
            raise DmlError(
                f"can't read {folder / name}: {error.strerror}; the data set is incompletely "
                "unpacked"
            ) from error
        for file in files:
            match = _NAME.match(file.name)
            if match is None:
                raise DmlError(
                    f"{file} isn't named by identity and camera, like 0002_c1s1_000451_03.jpg; "
                    "unpack the archive again"
                )
            if match["identity"] != _JUNK:
                parts[part].setdefault(match["identity"], []).append(file)
                groups[file] = match["camera"]
    return Parts(parts["train"], parts["test"], parts.get("gallery"), groups)


MARKET1501 = OfficialSet(
    name="market1501",
    title="Market-1501",
    markers=("bounding_box_train", "bounding_box_test"),
    list_parts=partial(
        _list_parts,
        names={"train": "bounding_box_train", "test": "query", "gallery": "bounding_box_test"},
    ),
    published={"train": (12_936, 751), "test": (3_368, 750), "gallery": (15_913, 751)},
    archives=(
        Archive(
            "Market-1501-v15.09.15.zip", "about 150 MB", md5="65005ab7d12ec1c44de4eeafe813e68a"
        ),
    ),
    by_hand=(
        "Its owners distribute it by Google Drive and Baidu, so download it by hand: follow the "
        "link on https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html, put "
        "Market-1501-v15.09.15.zip into a folder, then run dml data fetch market1501 --root FOLDER"
    ),
)

VERI776 = OfficialSet(
    name="veri776",
    title="VeRi-776",
    markers=("image_train", "image_query"),
    list_parts=partial(
        _list_parts, names={"train": "image_train", "test": "image_query", "gallery": "image_test"}
    ),
    published={"train": (37_778, 576), "test": (1_678, 200), "gallery": (11_579, 200)},
    archives=(Archive("VeRi.zip", "size unpublished"),),
    by_hand=(
        "Its owners send it on request (https://github.com/JDAI-CV/VeRidataset); put VeRi.zip into "
        "a folder, then run dml data fetch veri776 --root FOLDER; or unpack the archive yourself"
    ),
)


def _read_list(folder: Path, name: str) -> dict[str, list[Path]]:
    """Read a list with the numbers of an image and a vehicle per line."""
    file = folder / _LISTS / name
    classes: dict[str, list[Path]] = {}
    for image, vehicle in read_lines(file, 2):
        parse_number(vehicle, file)
        classes.setdefault(vehicle, []).append(folder / "image" / f"{image}.jpg")
    return classes


def describe_vehicleid(vehicles: Vehicles, draw: int) -> OfficialSet:
    """Describe the data set with a test list and a draw of the gallery, see `read_vehicleid`."""

    def list_parts(folder: Path) -> Parts:
        queries: dict[str, list[Path]] = {}
        gallery: dict[str, list[Path]] = {}
        for vehicle, listed in _read_list(folder, f"test_list_{vehicles}.txt").items():
            files = sorted(listed)
            # The choice depends only on the draw and the vehicle's number.
            gallery[vehicle] = [
                files.pop(np.random.default_rng([draw, int(vehicle)]).integers(len(files)))
            ]
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
            "Its owners send it on request (https://pkuml.org/resources/pku-vehicleid.html); "
            "unpack the archive yourself, or put it into a folder as VehicleID_V1.0.zip and run "
            "dml data fetch vehicleid --root FOLDER"
        ),
    )


def read_vehicleid(root: str, vehicles: Vehicles = 2400, draw: int = 0) -> Parts:
    """Read PKU VehicleID in the official layout: ``image``, and ``train_test_split`` with the
    lists.

    For every test vehicle, a random image is in the gallery, and the others are queries; the paper
    repeats this ten times and averages. Draw d chooses the images by numpy's generator with the
    seed (d, vehicle), so ten runs of the evaluation with draws 0 to 9 follow the protocol, and a
    draw is identical everywhere. Raise a `DmlError` if the data set is missing or incomplete.

    Args:
        root: the folder ``VehicleID_V1.0``, or the parent.
        vehicles: the test list: 800 (small), 1600 (medium) or 2400 (large) vehicles.
        draw: the number of the random gallery; should not be negative.
    """
    if draw < 0:
        raise ValueError(f"draw is {draw}; expected at least 0")
    return describe_vehicleid(vehicles, draw).read(root)
