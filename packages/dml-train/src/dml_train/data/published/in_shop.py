"""In-Shop Clothes Retrieval of DeepFashion: 52,712 photographs of 7,982 items of clothing (Liu et al. 2016)."""

from __future__ import annotations

from pathlib import Path

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet, Published, read_lines, whole

_LISTS = ("list_eval_partition.txt", "Eval/list_eval_partition.txt")


def _list(folder: Path) -> Parts:
    listing = next(folder / name for name in _LISTS if (folder / name).is_file())
    # img.zip lies in Img/ and holds img/; people unpack it there or beside it.
    images = next((base for base in (folder / "Img", folder) if (base / "img").is_dir()), folder)
    parts: dict[str, dict[str, list[Path]]] = {"train": {}, "query": {}, "gallery": {}}
    rows = read_lines(listing, 3, skip=2)
    stated = whole(read_lines(listing, 1)[0][0], listing)
    if stated != len(rows):
        raise DmlError(f"{listing} says that it has {stated:,} lines and has {len(rows):,}; unpack it again")
    for path, item, part in rows:
        if part not in parts:
            raise DmlError(f"{listing}: {path} is in {part!r}; expected one of: {', '.join(parts)}")
        parts[part].setdefault(item, []).append(images / path)
    return Parts(parts["train"], parts["query"], parts["gallery"])


IN_SHOP = OfficialSet(
    name="in-shop",
    title="In-Shop Clothes Retrieval",
    markers=_LISTS,
    list_parts=_list,
    published={
        "train": Published(25_882, 3_997),
        "test": Published(14_218, 3_985),
        "gallery": Published(12_612, 3_985),
    },
    archives=(
        Archive("list_eval_partition.txt", "4 MB", unpacks=False),
        Archive("img.zip", "about 0.5 GB"),
    ),
    by_hand=(
        "Its owners hand it out by Google Drive, which needs a person: from "
        "http://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html follow the link to the folder 'In-shop "
        "Clothes Retrieval Benchmark', put Eval/list_eval_partition.txt and Img/img.zip (not img_highres.zip) into one "
        "folder, or keep their folders; dml data fetch in-shop --root FOLDER unpacks them"
    ),
)


def read_in_shop(root: str) -> Parts:
    """In-Shop Clothes Retrieval as it is downloaded: ``list_eval_partition.txt`` and ``img``.

    25,882 images of 3,997 items train; 14,218 queries are searched in a gallery of 12,612, both of 3,985 items.

    Source: Liu et al. 2016, DeepFashion.

    Args:
        root: the folder that holds ``list_eval_partition.txt`` (or ``Eval`` with it) and ``img`` (or ``Img/img``);
            or the folder that holds that one.

    Raises:
        DmlError: if it isn't there, or isn't whole.
    """
    return IN_SHOP.read(root)
