"""In-Shop Clothes Retrieval of DeepFashion: 52,712 photographs of 7,982 items of clothing (Liu et al. 2016)."""

from __future__ import annotations

from pathlib import Path

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet, read_lines

_LISTS = ("list_eval_partition.txt", "Eval/list_eval_partition.txt")


def _list_parts(folder: Path) -> Parts:
    listing = next(folder / name for name in _LISTS if (folder / name).is_file())
    # Img/img.zip contains img/; users unpack it into Img/ or next to Img/.
    images = next((base for base in (folder / "Img", folder) if (base / "img").is_dir()), folder)
    parts: dict[str, dict[str, list[Path]]] = {"train": {}, "query": {}, "gallery": {}}
    for path, item, part in read_lines(listing, 3, skip=2):
        if part not in parts:
            raise DmlError(f"{listing}: {path} is in {part!r}; expected one of: {', '.join(parts)}")
        parts[part].setdefault(item, []).append(images / path)
    return Parts(parts["train"], parts["query"], parts["gallery"])


IN_SHOP = OfficialSet(
    name="in-shop",
    title="In-Shop Clothes Retrieval",
    markers=_LISTS,
    list_parts=_list_parts,
    published={"train": (25_882, 3_997), "test": (14_218, 3_985), "gallery": (12_612, 3_985)},
    archives=(Archive("list_eval_partition.txt", "4 MB", unpacks=False), Archive("img.zip", "about 0.5 GB")),
    by_hand=(
        "Its owners distribute it by Google Drive, so download it by hand: from "
        "http://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html follow the link to the folder 'In-shop "
        "Clothes Retrieval Benchmark', put Eval/list_eval_partition.txt and Img/img.zip (not img_highres.zip) into one "
        "folder, or keep the folders Eval and Img; then run dml data fetch in-shop --root FOLDER"
    ),
)
