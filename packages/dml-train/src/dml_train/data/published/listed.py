"""Data sets in which text files list the images: CUB-200-2011, Stanford Online Products, and
In-Shop of DeepFashion.

Source: Wah et al. 2011: 11,788 photographs of 200 species of birds, full images (not cropped to
boxes), in the split of Song et al. 2016; Song et al. 2016, Deep Metric Learning via Lifted
Structured Feature Embedding: 120,053 photographs of 22,634 products sold online; Liu et al. 2016,
DeepFashion: 52,712 photographs of 7,982 items of clothing.
"""

from __future__ import annotations

from pathlib import Path

from dml_core import DmlError
from dml_train.data.parts import Classes, Parts
from dml_train.data.published.official import Archive, OfficialSet, parse_number, read_lines

_TRAIN_CLASSES = 100  # in CUB, the classes with the lowest numbers train
_LISTS = ("list_eval_partition.txt", "Eval/list_eval_partition.txt")  # the places of In-Shop's list


def _list_cub(folder: Path) -> Parts:
    """Read ``classes.txt``, ``images.txt`` and ``image_class_labels.txt``."""
    names = {
        parse_number(number, folder / "classes.txt"): name
        for number, name in read_lines(folder / "classes.txt", 2)
    }
    images = {
        image: folder / "images" / path for image, path in read_lines(folder / "images.txt", 2)
    }
    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    labels = folder / "image_class_labels.txt"
    for image, number in read_lines(labels, 2):
        c = parse_number(number, labels)
        if image not in images or c not in names:
            raise DmlError(
                f"{labels} names image {image} and class {c}, but images.txt or classes.txt lacks "
                "one of these; unpack the archive again"
            )
        (train if c <= _TRAIN_CLASSES else test).setdefault(names[c], []).append(images[image])
    return Parts(train, test)


CUB = OfficialSet(
    name="cub",
    title="CUB-200-2011",
    markers=("images.txt",),
    list_parts=_list_cub,
    published={"train": (5_864, 100), "test": (5_924, 100)},
    archives=(
        Archive(
            "CUB_200_2011.tgz",
            "1.1 GB",
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            md5="97eceeb196236b17998738112f37df78",
        ),
    ),
)


def _list_sop(folder: Path) -> Parts:
    return Parts(_read_classes(folder, "Ebay_train.txt"), _read_classes(folder, "Ebay_test.txt"))


def _read_classes(folder: Path, name: str) -> Classes:
    classes: dict[str, list[Path]] = {}
    for _, number, _, path in read_lines(folder / name, 4, skip=1):
        kind = path.partition("_final/")[0]  # bicycle_final/111085122871_0.JPG
        classes.setdefault(f"{kind} {number}", []).append(folder / path)
    return classes


SOP = OfficialSet(
    name="sop",
    title="Stanford Online Products",
    markers=("Ebay_train.txt", "Ebay_test.txt"),
    list_parts=_list_sop,
    published={"train": (59_551, 11_318), "test": (60_502, 11_316)},
    archives=(
        Archive(
            "Stanford_Online_Products.zip",
            "2.9 GB",
            "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            md5="7f73d41a2f44250d4779881525aea32e",
        ),
    ),
)


def _list_in_shop(folder: Path) -> Parts:
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
    list_parts=_list_in_shop,
    published={"train": (25_882, 3_997), "test": (14_218, 3_985), "gallery": (12_612, 3_985)},
    archives=(
        Archive("list_eval_partition.txt", "4 MB", unpacks=False),
        Archive("img.zip", "about 0.5 GB"),
    ),
    by_hand=(
        "Its owners distribute it by Google Drive, so download it by hand: from "
        "http://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html follow the link to "
        "the folder 'In-shop Clothes Retrieval Benchmark', put Eval/list_eval_partition.txt and "
        "Img/img.zip (not img_highres.zip) into one folder, or keep the folders Eval and Img; then "
        "run dml data fetch in-shop --root FOLDER"
    ),
)
