"""Market-1501 and VeRi-776: persons seen by six cameras, and vehicles seen by 20.

A file's name contains identity and camera: ``0002_c1s1_000451_03.jpg`` in Market-1501, ``0001_c001_00016450_0.jpg`` in
VeRi-776. The cameras are groups, so that a query's ranking excludes images with the same identity and camera, also the
copy of the query in VeRi-776's gallery.

Source: Zheng et al. 2015, Scalable Person Re-identification: A Benchmark; Liu et al. 2016, A Deep Learning-Based
Approach to Progressive Vehicle Re-identification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet

_NAME = re.compile(r"(?P<identity>-1|\d+)_(?P<camera>c\d+)")
# Boxes in Market-1501 that are neither good nor bad, and must have no influence. Keep the distractors, 0000: they match
# nobody and are an additional class in the gallery.
_JUNK = "-1"


def _list_parts(folder: Path, names: Mapping[str, str]) -> Parts:
    """List the images of each part; `names` maps a part to a folder."""
    parts: dict[str, dict[str, list[Path]]] = {part: {} for part in names}
    groups: dict[Path, str] = {}
    for part, name in names.items():
        try:
            files = sorted(file for file in (folder / name).iterdir() if file.suffix.lower() == ".jpg")
        except OSError as error:
            raise DmlError(
                f"can't read {folder / name}: {error.strerror}; the data set is incompletely unpacked"
            ) from error
        for file in files:
            match = _NAME.match(file.name)
            if match is None:
                raise DmlError(
                    f"{file} isn't named by identity and camera, like 0002_c1s1_000451_03.jpg; unpack the archive again"
                )
            if match["identity"] != _JUNK:
                parts[part].setdefault(match["identity"], []).append(file)
                groups[file] = match["camera"]
    return Parts(**parts, groups=groups)


MARKET1501 = OfficialSet(
    name="market1501",
    title="Market-1501",
    markers=("bounding_box_train", "bounding_box_test"),
    list_parts=partial(
        _list_parts, names={"train": "bounding_box_train", "test": "query", "gallery": "bounding_box_test"}
    ),
    published={"train": (12_936, 751), "test": (3_368, 750), "gallery": (15_913, 751)},
    archives=(Archive("Market-1501-v15.09.15.zip", "about 150 MB", md5="65005ab7d12ec1c44de4eeafe813e68a"),),
    by_hand=(
        "Its owners distribute it by Google Drive and Baidu, so download it by hand: follow the link on "
        "https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html, put Market-1501-v15.09.15.zip into a folder, "
        "then run dml data fetch market1501 --root FOLDER"
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
        "Its owners send it on request (https://github.com/JDAI-CV/VeRidataset); put VeRi.zip into a folder, then run "
        "dml data fetch veri776 --root FOLDER; or unpack the archive yourself"
    ),
)
