"""`dml data check` counts images; `dml data fetch` downloads and unpacks, or names files to
download by hand.
"""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from train_support.official_trees import CUB_COUNTS, draw, make_cub, reduce, write

from dml_train.cli import main
from dml_train.commands.data import NAMES
from dml_train.data.published.sets import OFFICIAL


def dml(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["data", *map(str, arguments)])


def one_line(result: Result) -> str:
    """Return the whole output in a single line."""
    return " ".join(result.output.split())


@pytest.fixture
def small_cub(monkeypatch) -> None:
    """Reduce CUB to three classes of eight images."""
    monkeypatch.setitem(OFFICIAL, "cub", reduce("cub", CUB_COUNTS))


@pytest.fixture
def small_in_shop(monkeypatch) -> None:
    """Reduce In-Shop to four images."""
    counts = {"train": (2, 1), "test": (1, 1), "gallery": (1, 1)}
    monkeypatch.setitem(OFFICIAL, "in-shop", reduce("in-shop", counts))


ROWS = [
    "img/a.jpg id_1 train",
    "img/b.jpg id_1 train",
    "img/c.jpg id_2 query",
    "img/d.jpg id_2 gallery",
]


def write_in_shop_list(folder: Path) -> None:
    write(folder / "list_eval_partition.txt", ["4", "heading", *ROWS])


def pack_in_shop_images(folder: Path) -> None:
    draw(folder / "one.jpg")
    with zipfile.ZipFile(folder / "img.zip", "w") as archive:
        for name in "abcd":
            archive.write(folder / "one.jpg", f"img/{name}.jpg")
    (folder / "one.jpg").unlink()


def test_the_commands_accept_every_published_data_set():
    assert [*NAMES] == [*OFFICIAL]


def remove(folder: Path, images: list[Path]) -> str:
    for file in images[:12]:
        file.unlink()
    counts = "train 4 2 16 2 test 8 1 8 1"
    return (
        f"{counts} {' '.join(f'missing: {file}' for file in images[:10])} missing: 2 more "
        "incomplete: 12 of 24"
    )


def shorten(folder: Path, images: list[Path]) -> str:
    labels = folder / "image_class_labels.txt"
    write(labels, labels.read_text().splitlines()[:-1])
    return "wrong count: test has 7 images of 1 classes (published: 8 of 1) incomplete: 0 of 23"


def damage(folder: Path, images: list[Path]) -> str:
    write(folder / "image_class_labels.txt", ["1"])
    return (
        f"incomplete: {folder / 'image_class_labels.txt'}, line 1: '1' contains 1 columns; "
        "expected 2"
    )


def test_check_exits_with_0_for_a_complete_data_set(tmp_path, small_cub):
    make_cub(tmp_path / "CUB_200_2011")
    result = dml("check", "cub", "--root", tmp_path)
    assert result.exit_code == 0, result.output
    assert one_line(result).endswith("train 16 2 16 2 test 8 1 8 1 complete")


@pytest.mark.parametrize("change", [remove, shorten, damage])
def test_check_exits_with_1_and_says_what_is_missing_or_wrong(tmp_path, small_cub, change):
    folder = tmp_path / "CUB_200_2011"
    expected = change(folder, make_cub(folder))
    result = dml("check", "cub", "--root", tmp_path)
    assert result.exit_code == 1
    assert expected in one_line(result)


def test_check_with_decode_lists_images_that_cannot_be_decoded(tmp_path, small_in_shop):
    write_in_shop_list(tmp_path)
    pack_in_shop_images(tmp_path)
    assert dml("fetch", "in-shop", "--root", tmp_path).exit_code == 0
    (tmp_path / "img" / "c.jpg").write_bytes(b"")
    assert dml("check", "in-shop", "--root", tmp_path).exit_code == 0
    result = dml("check", "in-shop", "--root", tmp_path, "--decode")
    assert result.exit_code == 1
    expected = (
        "c.jpg: it is empty; repair or remove the file incomplete: 0 of 4 images missing, 1 bad"
    )
    assert expected in one_line(result)


def test_check_exits_with_2_and_says_how_to_get_a_missing_data_set(tmp_path):
    (tmp_path / "Stanford_Online_Products.zip").write_bytes(b"something")
    result = dml("check", "sop", "--root", tmp_path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "isn't unpacked: run dml data fetch sop --root" in one_line(result)


def test_fetch_downloads_unpacks_and_counts(tmp_path, serve, monkeypatch):
    make_cub(tmp_path / "pack" / "CUB_200_2011")
    file = tmp_path / "CUB_200_2011.tgz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(tmp_path / "pack", arcname=".")
    address = serve(file.read_bytes(), file.name)
    archive = OFFICIAL["cub"].archives[0]._replace(address=address, md5=None)
    monkeypatch.setitem(OFFICIAL, "cub", reduce("cub", CUB_COUNTS, archives=(archive,)))
    root = tmp_path / "new" / "root"
    result = dml("fetch", "cub", "--root", root)
    assert result.exit_code == 0, result.output
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"SHA-256 {sha256}; no checksum is published" in one_line(result)
    assert one_line(result).endswith(" complete")
    assert sorted(entry.name for entry in root.iterdir()) == ["CUB_200_2011", "CUB_200_2011.tgz"]
    again = dml("fetch", "cub", "--root", root)
    assert again.exit_code == 0
    assert "CUB-200-2011 is already in" in one_line(again)


def test_fetch_never_overwrites_an_incomplete_data_set(tmp_path, small_cub):
    make_cub(tmp_path / "root" / "CUB_200_2011")[2].unlink()
    result = dml("fetch", "cub", "--root", tmp_path / "root")
    assert result.exit_code == 2
    assert [*(tmp_path / "root").iterdir()] == [tmp_path / "root" / "CUB_200_2011"]


@pytest.mark.parametrize("folders", [("", ""), ("Eval", "Img")])
def test_fetch_unpacks_archives_downloaded_by_hand(tmp_path, small_in_shop, folders):
    lists, images = (tmp_path / "In-shop" / folder for folder in folders)
    images.mkdir(parents=True)
    write_in_shop_list(lists)
    pack_in_shop_images(images)
    result = dml("fetch", "in-shop", "--root", tmp_path / "In-shop")
    assert result.exit_code == 0, result.output
    assert "test 1 1 1 1 gallery 1 1 1 1 complete" in one_line(result)
    assert (images / "img" / "a.jpg").is_file()


def test_fetch_exits_with_2_if_a_download_by_hand_is_missing(tmp_path):
    result = dml("fetch", "in-shop", "--root", tmp_path)
    assert result.exit_code == 2
    assert "doesn't contain list_eval_partition.txt and img.zip" in one_line(result)
    assert "download it by hand" in one_line(result)


def test_fetch_refuses_an_existing_archive_with_a_wrong_checksum(tmp_path):
    (tmp_path / "Stanford_Online_Products.zip").write_bytes(b"something")
    result = dml("fetch", "sop", "--root", tmp_path)
    assert result.exit_code == 2
    assert "expected 7f73d41a2f44250d4779881525aea32e" in one_line(result)
