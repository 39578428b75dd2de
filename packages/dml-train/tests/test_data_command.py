"""`dml data`: check counts, fetch gets what can be got, and says what a person must do."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from official_trees import Pictures, write

from dml_train import data
from dml_train.cli import main
from dml_train.commands.data import check
from dml_train.data.published.official import Published


def dml(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["data", *map(str, arguments)])


def words(result: Result) -> str:
    """All that was said, in one line."""
    return " ".join(result.output.split())


@pytest.fixture
def small_cub(monkeypatch) -> None:
    """CUB as if six images were all of it."""
    counts = {"train": Published(3, 1), "test": Published(3, 1)}
    monkeypatch.setitem(data.OFFICIAL, "cub", replace(data.OFFICIAL["cub"], published=counts))


def make_small_cub(folder: Path) -> list[Path]:
    """Its tree; the images."""
    images = [f"{c:03}.Bird/{i}.jpg" for c in (1, 101) for i in range(3)]
    for image in images:
        write(folder / "images" / image, ["a picture"])
    write(folder / "classes.txt", ["1 001.Bird", "101 101.Bird"])
    write(folder / "images.txt", [f"{i} {image}" for i, image in enumerate(images)])
    write(folder / "image_class_labels.txt", [f"{i} {1 if i < 3 else 101}" for i in range(6)])
    return [folder / "images" / image for image in images]


@pytest.fixture
def small_in_shop(monkeypatch) -> None:
    """In-Shop as if four images were all of it."""
    counts = {"train": Published(2, 1), "test": Published(1, 1), "gallery": Published(1, 1)}
    monkeypatch.setitem(data.OFFICIAL, "in-shop", replace(data.OFFICIAL["in-shop"], published=counts))


ROWS = ["img/a.jpg id_1 train", "img/b.jpg id_1 train", "img/c.jpg id_2 query", "img/d.jpg id_2 gallery"]


def write_in_shop_list(folder: Path) -> None:
    write(folder / "list_eval_partition.txt", ["4", "heading", *ROWS])


def pack_in_shop_images(folder: Path) -> None:
    Pictures(folder / "sources").make(folder / "one.jpg")
    with zipfile.ZipFile(folder / "img.zip", "w") as archive:
        for name in "abcd":
            archive.write(folder / "one.jpg", f"img/{name}.jpg")
    shutil.rmtree(folder / "sources")
    (folder / "one.jpg").unlink()


# --- check ----------------------------------------------------------------------------------------------------


def test_the_commands_know_the_data_sets_that_there_are():
    (name,) = (parameter for parameter in check.params if parameter.name == "name")
    assert [*name.type.choices] == [*data.OFFICIAL]


def test_a_whole_set_is_checked_with_0(tmp_path, small_cub):
    make_small_cub(tmp_path / "CUB_200_2011")
    result = dml("check", "cub", "--root", tmp_path)
    assert result.exit_code == 0, result.output
    assert words(result).endswith("train 3 1 3 1 test 3 1 3 1 whole")


def test_a_set_that_lacks_images_is_checked_with_1_and_they_are_named(tmp_path, small_cub, monkeypatch):
    gone = make_small_cub(tmp_path / "CUB_200_2011")[:3]
    for file in gone:
        file.unlink()
    monkeypatch.setattr("dml_train.data.published.checking._NAMED", 2)
    result = dml("check", "cub", "--root", tmp_path)
    assert result.exit_code == 1
    assert "train 0 1 3 1 test 3 1 3 1" in words(result)
    assert f"missing: {gone[1]} missing: 1 more not whole: 3 of 6 images missing" in words(result)


def test_a_set_of_other_lists_is_checked_with_1(tmp_path):
    write_in_shop_list(tmp_path)
    for name in "abcd":
        write(tmp_path / "img" / f"{name}.jpg", ["a picture"])
    result = dml("check", "in-shop", "--root", tmp_path)
    assert result.exit_code == 1
    assert "differs: the list of gallery has 1 images of 1 classes, published are 12,612 of 3,985" in words(
        result
    )


def test_images_that_cannot_be_decoded_are_named_if_asked_for(tmp_path, small_in_shop):
    write_in_shop_list(tmp_path)
    pack_in_shop_images(tmp_path)
    assert dml("fetch", "in-shop", "--root", tmp_path).exit_code == 0
    (tmp_path / "img" / "c.jpg").write_bytes(b"")
    assert dml("check", "in-shop", "--root", tmp_path).exit_code == 0
    result = dml("check", "in-shop", "--root", tmp_path, "--decode")
    assert result.exit_code == 1
    assert "c.jpg: it is empty; repair or remove the file not whole: 0 of 4 images missing, 1 bad" in words(
        result
    )


def test_a_set_whose_lists_are_damaged_is_checked_with_1(tmp_path, small_cub):
    folder = tmp_path / "CUB_200_2011"
    make_small_cub(folder)
    write(folder / "image_class_labels.txt", ["1"])
    result = dml("check", "cub", "--root", tmp_path)
    assert result.exit_code == 1
    assert f"not whole: {folder / 'image_class_labels.txt'}, line 1: '1' has 1 columns; expected 2" in words(
        result
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "is not a folder. Stanford Online Products comes as Stanford_Online_Products.zip"),
        ([], "Stanford Online Products is not in"),
        (["Stanford_Online_Products.zip"], "isn't unpacked there: dml data fetch sop --root"),
    ],
    ids=["no folder", "an empty folder", "an archive"],
)
def test_a_root_without_the_set_is_told_with_2_and_what_to_do(tmp_path, files, message):
    root = tmp_path / "root"
    if files is not None:
        root.mkdir()
    for name in files or ():
        (root / name).write_bytes(b"something")
    result = dml("check", "sop", "--root", root)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in words(result)


# --- fetch ----------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path, monkeypatch, small_cub) -> Iterator[Path]:
    """A folder whose files a server on this machine gives out, CUB's archive among them by its address."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    cub = data.OFFICIAL["cub"]
    address = f"http://127.0.0.1:{server.server_port}/CUB_200_2011.tgz"
    archive = cub.archives[0]._replace(address=address, md5=None)
    monkeypatch.setitem(data.OFFICIAL, "cub", replace(cub, archives=(archive,)))
    yield folder
    server.shutdown()
    server.server_close()


def test_a_set_is_downloaded_unpacked_and_counted(tmp_path, served):
    make_small_cub(tmp_path / "pack" / "CUB_200_2011")
    file = served / "CUB_200_2011.tgz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(tmp_path / "pack", arcname=".")
    root = tmp_path / "new" / "root"
    result = dml("fetch", "cub", "--root", root)
    assert result.exit_code == 0, result.output
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"SHA-256 {sha256}; no checksum of it is published" in words(result)
    assert words(result).endswith("whole")
    assert sorted(entry.name for entry in root.iterdir()) == ["CUB_200_2011", "CUB_200_2011.tgz"]
    file.unlink()
    again = dml("fetch", "cub", "--root", root)
    assert again.exit_code == 0
    assert "CUB-200-2011 is in" in words(again)


def test_half_a_set_is_not_taken_for_one_and_not_written_over(tmp_path, served):
    make_small_cub(tmp_path / "root" / "CUB_200_2011")[2].unlink()
    result = dml("fetch", "cub", "--root", tmp_path / "root")
    assert result.exit_code == 2
    assert [*(tmp_path / "root").iterdir()] == [tmp_path / "root" / "CUB_200_2011"]


def test_a_server_that_has_nothing_is_told_with_2_and_nothing_is_left(served, tmp_path):
    result = dml("fetch", "cub", "--root", tmp_path / "root")
    assert result.exit_code == 2
    assert [*(tmp_path / "root").iterdir()] == []


@pytest.mark.parametrize("folders", [("", ""), ("Eval", "Img")])
def test_archives_that_a_person_has_put_there_are_unpacked(tmp_path, small_in_shop, folders):
    lists, images = (tmp_path / "In-shop" / folder for folder in folders)
    images.mkdir(parents=True)
    write_in_shop_list(lists)
    pack_in_shop_images(images)
    result = dml("fetch", "in-shop", "--root", tmp_path / "In-shop")
    assert result.exit_code == 0, result.output
    assert "test 1 1 1 1 gallery 1 1 1 1 whole" in words(result)
    assert (images / "img" / "a.jpg").is_file()


def test_what_only_a_person_can_download_is_told_with_2(tmp_path):
    assert dml("fetch", "in-shop", "--root", tmp_path).exit_code == 2
    with pytest.raises(
        Exception, match=r"doesn't hold list_eval_partition\.txt and img\.zip.*needs a person"
    ):
        CliRunner().invoke(
            main,
            ["data", "fetch", "in-shop", "--root", str(tmp_path)],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_an_older_archive_that_is_there_is_used_if_its_checksum_is_right(tmp_path):
    (tmp_path / "car_ims.tgz").write_bytes(b"something")
    (tmp_path / "cars_annos.mat").write_bytes(b"something")
    with pytest.raises(
        Exception, match=r"car_ims\.tgz has the MD5 .*, where d5c8f0aa497503f355e17dc7886c3f14 is known"
    ):
        CliRunner().invoke(
            main,
            ["data", "fetch", "cars196", "--root", str(tmp_path)],
            standalone_mode=False,
            catch_exceptions=False,
        )
