"""VeRi-776: pictures of 776 vehicles, seen by 20 cameras (Liu et al. 2016)."""

from __future__ import annotations

from pathlib import Path

from dml_train.data.parts import Parts
from dml_train.data.published.cameras import list_by_cameras
from dml_train.data.published.official import Archive, OfficialSet, PublishedCounts

_FOLDERS = {"train": "image_train", "test": "image_query", "gallery": "image_test"}


def _list_parts(folder: Path) -> Parts:
    return list_by_cameras(folder, _FOLDERS)


VERI776 = OfficialSet(
    name="veri776",
    title="VeRi-776",
    markers=("image_train", "image_query"),
    list_parts=_list_parts,
    published={
        "train": PublishedCounts(37_778, 576),
        "test": PublishedCounts(1_678, 200),
        "gallery": PublishedCounts(11_579, 200),
    },
    archives=(Archive("VeRi.zip", "size unpublished"),),
    by_hand=(
        "Its owners send it on request (https://github.com/JDAI-CV/VeRidataset); put VeRi.zip into a folder, then run "
        "dml data fetch veri776 --root FOLDER; or unpack the archive yourself"
    ),
)


def read_veri776(root: str) -> Parts:
    """Read VeRi-776 in its official layout: ``image_train``, ``image_query`` and ``image_test``.

    37,778 images of 576 vehicles train; 1,678 queries are searched in a gallery of 11,579 images, both of 200 vehicles.
    The cameras are groups: images of a query's vehicle and camera, among them the query's own copy in the gallery, are
    left out of its ranking.

    Source: Liu et al. 2016, A Deep Learning-Based Approach to Progressive Vehicle Re-identification.

    Args:
        root: the folder ``VeRi``, or its parent.

    Raises:
        DmlError: if it is missing or incomplete.
    """
    return VERI776.read(root)
