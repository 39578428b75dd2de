"""Market-1501: pictures of 1,501 persons, seen by six cameras (Zheng et al. 2015)."""

from __future__ import annotations

from pathlib import Path

from dml_train.data.parts import Parts
from dml_train.data.published.cameras import list_by_cameras
from dml_train.data.published.official import Archive, OfficialSet, PublishedCounts

_FOLDERS = {"train": "bounding_box_train", "test": "query", "gallery": "bounding_box_test"}
_JUNK = (
    "-1",
)  # boxes neither good nor bad, which have no influence; 0000 are false alarms, which match nobody


def _list_parts(folder: Path) -> Parts:
    return list_by_cameras(folder, _FOLDERS, left_out=_JUNK)


MARKET1501 = OfficialSet(
    name="market1501",
    title="Market-1501",
    markers=("bounding_box_train", "bounding_box_test"),
    list_parts=_list_parts,
    published={
        "train": PublishedCounts(12_936, 751),
        "test": PublishedCounts(3_368, 750),
        "gallery": PublishedCounts(15_913, 751),
    },
    archives=(Archive("Market-1501-v15.09.15.zip", "about 150 MB", md5="65005ab7d12ec1c44de4eeafe813e68a"),),
    by_hand=(
        "Its owners distribute it by Google Drive and Baidu, so download it by hand: follow the link on "
        "https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html, put Market-1501-v15.09.15.zip into a folder, "
        "then run dml data fetch market1501 --root FOLDER"
    ),
)


def read_market1501(root: str) -> Parts:
    """Read Market-1501 in its official layout: ``bounding_box_train``, ``query`` and ``bounding_box_test``.

    12,936 images of 751 persons train; 3,368 queries of 750 persons are searched in a gallery of 15,913 images. The
    cameras are groups, so that images of a query's person and camera are left out of its ranking. Of the 19,732 images
    in ``bounding_box_test``, the 3,819 junk ones (-1) are left out, and the distractors (0000) stay, as one class more.

    Source: Zheng et al. 2015, Scalable Person Re-identification: A Benchmark.

    Args:
        root: the folder ``Market-1501-v15.09.15``, or its parent.

    Raises:
        DmlError: if it is missing or incomplete.
    """
    return MARKET1501.read(root)
