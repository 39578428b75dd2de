"""Stanford Online Products: 120,053 photographs of 22,634 products sold online.

Source: Song et al. 2016, Deep Metric Learning via Lifted Structured Feature Embedding.
"""

from __future__ import annotations

from pathlib import Path

from dml_train.data.parts import Classes, Parts
from dml_train.data.published.official import Archive, OfficialSet, read_lines


def _list_parts(folder: Path) -> Parts:
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
    list_parts=_list_parts,
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
