"""Tables of images: columns, splits, and the mistakes of tables made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_core import DmlError, GroupedSplit, registry
from dml_train.data.csv_table import read_csv_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write the pictures 0.png to 9.png into a folder."""
    for i in range(10):
        Image.new("RGB", (20, 20), (20 * i, 0, 0)).save(tmp_path / f"{i}.png")
    return tmp_path


def table(root: Path, *lines: str, name: str = "images.csv", encoding: str = "utf-8") -> str:
    (root / name).write_text("\n".join(lines) + "\n", encoding=encoding)
    return str(root)


def names(classes) -> dict[str, list[str]]:
    return {name: [file.name for file in files] for name, files in classes.items()}


def test_the_column_split_divides_the_images_and_query_and_gallery_are_separate(root):
    parts = read_csv_table(
        table(
            root,
            "path,label,split",
            "3.png,b,train",
            "1.png,a,train",
            "2.png,b,train",
            "4.png,c,test",
        )
    )
    assert names(parts.train) == {"a": ["1.png"], "b": ["3.png", "2.png"]}
    assert [*parts.train] == ["a", "b"]  # sorted by name, not by line
    assert names(parts.test) == {"c": ["4.png"]}
    assert parts.gallery is None
    lines = [
        "split,path,label",
        "train,1.png,a",
        "query,2.png,b",
        "gallery,3.png,b",
        "gallery,4.png,c",
    ]
    parts = read_csv_table(table(root, *lines))
    assert names(parts.test) == {"b": ["2.png"]}
    assert names(parts.gallery) == {"b": ["3.png"], "c": ["4.png"]}


def test_without_the_column_split_the_classes_are_split(root):
    lines = [f"{i}.png,class {i // 2}" for i in range(10)]
    where = table(root, "path,label", *lines)
    parts = read_csv_table(where, train_fraction=0.6, split_seed=1)
    assert (len(parts.train), len(parts.test)) == (3, 2)
    assert not parts.train.keys() & parts.test.keys()
    assert read_csv_table(where, train_fraction=0.6, split_seed=1) == parts
    assert read_csv_table(where, train_fraction=0.6, split_seed=2) != parts


def test_quotes_other_columns_a_byte_order_mark_and_another_file_name_are_accepted(root):
    where = table(
        root,
        "id,path,label",
        '7,1.png,"red, dark"',
        '8,2.png,"so called ""blue"""',
        name="my.csv",
        encoding="utf-8-sig",
    )
    parts = read_csv_table(where, table="my.csv")
    assert {*parts.train, *parts.test} == {"red, dark", 'so called "blue"'}


def test_the_column_group_names_the_group_of_every_image(root):
    where = table(
        root,
        "path,label,split,group",
        "1.png,a,train,c1",
        "2.png,b,query,c2",
        "3.png,b,gallery,c1",
        "4.png,b,gallery,c2",
    )
    dataset = registry().build(
        "datasets", {"name": "csv", "root": where, "resize": 8, "crop": 8}, {"seed": 0}
    )
    splits = (dataset.train, dataset.test, dataset.gallery)
    assert all(isinstance(split, GroupedSplit) for split in splits)
    assert [split.groups.tolist() for split in splits] == [["c1"], ["c2"], ["c1", "c2"]]
    assert dataset.test.load(np.array([0])).shape == (1, 3, 8, 8)
    assert dataset.test.class_names == ("b",)
    with pytest.raises(DmlError, match=r"images\.csv, line 3: the column 'group' is empty"):
        read_csv_table(table(root, "path,label,group", "1.png,a,c1", "2.png,b,"))
    assert (
        read_csv_table(table(root, "path,label,split", "1.png,a,train", "2.png,b,test")).groups
        is None
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("path,label | 1.png,a | 2.png,", r"images\.csv, line 3: the column 'label' is empty"),
        ("path,label | ,a", r"line 2: the column 'path' is empty"),
        ("path,label | ", "has 0 classes; expected at least 2"),
        ("path,label | 1.png,a | 2.png,a", "has 1 classes; expected at least 2"),
        (
            "path,label | 1.png,a | 20.png,b | 30.png,b",
            r"2 of the 3 images .* are missing, e\.g\. .*20\.png \(line 3\)",
        ),
        ("path,label | 1.png,a | 2.png,b | 1.png,b", r"lines 2 and 4 both name '1\.png'"),
        ("path,label | 1.png,a | 2.png,b | ./1.png,b", r"lines 2 and 4 both name '\./1\.png'"),
        ("path,label | 1.png,b | 2.png,b ", "classes .* look equal: 'b' and 'b '"),
        ('path,label | 1.png,"a | 2.png,b', "is not a CSV file in UTF-8"),
        ("path,label,split | 1.png,a,", r"line 2: the column 'split' is empty"),
        ("path,label,split | 1.png,a,tets", r"split is 'tets'; did you mean 'test'\?"),
        (
            "path,label,split | 1.png,a,train | 2.png,a,test",
            "class 'a' is in the train part .* and in the test",
        ),
        (
            "path,label,split | 1.png,a,train | 2.png,b,train",
            "the test part of .* doesn't contain images",
        ),
        (
            "path,label,split | 1.png,a,train | 2.png,b,query",
            "contains the splits train, query; expected train and test",
        ),
        (
            "path,label,split | 1.png,a,train | 2.png,b,test | 3.png,b,gallery",
            "contains the splits train, test, gallery",
        ),
        (
            "path,label,split | 1.png,a,train | 2.png,b,query | 3.png,c,gallery",
            "no class of .*test.* is in .*gallery",
        ),
        ("path,lable | 1.png,a | 2.png,b", r"lacks the column 'label'; did you mean 'lable'\?"),
        (
            "1.png,a | 1.png,a | 2.png,b",
            r"lacks the column 'path'; the first line must name path and label.*names: 1\.png, a",
        ),
    ],
)
def test_a_wrong_table_is_refused_with_the_line(root, lines, message):
    with pytest.raises(DmlError, match=message):
        read_csv_table(table(root, *lines.split(" | ")))


def test_a_missing_table_and_one_that_is_not_utf_8_are_named(root):
    with pytest.raises(DmlError, match=r"can't read the table .*images\.csv: No such file"):
        read_csv_table(str(root))
    (root / "images.csv").write_bytes(b"path,label\n\xff\xfe\n")
    with pytest.raises(DmlError, match="is not a CSV file in UTF-8"):
        read_csv_table(str(root))
