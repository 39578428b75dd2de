"""Images in archives and tables, and batches given to `Embedder`, must give the bits of images in
files.
"""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from train_support.photo_world import write_photos

from dml_core import DmlError
from dml_train.data.stored import PathTable, TableRows, TarMembers
from dml_train.trained.embedder import Embedder
from dml_train.trained.folder import embed_images
from dml_train.trained.images import list_folder, open_images
from dml_train.trained.model import open_model
from dml_train.trained.plan import EmbeddingPlan, ThisProcess
from dml_train.trained.search import Gallery

pa = pytest.importorskip("pyarrow", reason="reads and writes tables")
pq = pytest.importorskip("pyarrow.parquet", reason="reads and writes tables")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Write thirty photos and a JPEG, which can be decoded to a fraction of the full size."""
    folder = write_photos(tmp_path_factory.mktemp("photos"), seed=1)
    pixels = np.random.default_rng(2).integers(0, 256, (200, 240, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "class-2" / "large.jpg")
    return folder


@pytest.fixture(scope="module")
def paths(photos):
    return list_folder(photos).names


@pytest.fixture
def embed(model, tmp_path):
    def embed(images, name="e.npy", **options):
        embed_images(
            EmbeddingPlan(model, images, chunk_size=8), tmp_path / name, ThisProcess(), **options
        )
        return (tmp_path / name).read_bytes()

    return embed


def write_tar(path, photos, paths):
    with tarfile.open(path, "w") as archive:
        for number, name in enumerate(paths):
            archive.add(photos / name, arcname=f"{number:04}{(photos / name).suffix}")
            label = io.BytesIO(b"7")
            entry = tarfile.TarInfo(f"{number:04}.cls")
            entry.size = 1
            archive.addfile(entry, label)


def write_table(path, column, cells):
    table = pa.table({"id": list(range(len(cells))), column: cells})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=5)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=5)


@pytest.fixture
def whole(embed, photos):
    return embed(list_folder(photos), "whole.npy")


def test_archives_give_the_bits_of_files(embed, model, whole, photos, paths, tmp_path):
    write_tar(tmp_path / "all.tar", photos, paths)
    assert embed(open_images(tmp_path / "all.tar")) == whole
    about = json.loads((tmp_path / "e.json").read_text())
    assert (about["paths"][0], len(about["paths"])) == ("all.tar/0000.png", 31)
    assert about["files"] == [str(tmp_path / "all.tar")]
    gallery = Gallery.of_index(model, tmp_path / "e.npy")
    assert (gallery.names, gallery.picture) == (about["paths"], None)
    assert "Without pictures" in gallery.note
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars" / "1.tar", photos, paths[13:])
    write_tar(tmp_path / "tars" / "0.tar", photos, paths[:13])
    assert embed(open_images(tmp_path / "tars"), "several.npy") == whole


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("kind", ["bytes", "image", "path"])
def test_tables_give_the_bits_of_files(embed, whole, photos, paths, tmp_path, suffix, kind):
    contents = [(photos / name).read_bytes() for name in paths]
    cells = {
        "bytes": contents,
        "image": [
            {"bytes": content, "path": None} for content in contents
        ],  # as in Hugging Face's data sets
        "path": [str(photos / name) for name in paths],
    }[kind]
    write_table(tmp_path / f"table{suffix}", kind, cells)
    images = open_images(tmp_path / f"table{suffix}")
    assert embed(images) == whole
    assert images.names[3] == (cells[3] if kind == "path" else f"table{suffix}/3")
    sources = pickle.loads(pickle.dumps(images.sources[3:5]))
    assert [(s.read_bytes() if kind == "path" else s.read()) for s in sources] == contents[3:5]


def test_loader_processes_and_a_bad_image(embed, photos, paths, tmp_path):
    contents = [(photos / name).read_bytes() for name in paths]
    contents[9] = b"no image"
    write_table(tmp_path / "t.parquet", "bytes", contents)
    images = open_images(tmp_path / "t.parquet")
    with pytest.raises(DmlError, match=r"t\.parquet, row 9: not an image in PNG"):
        embed(images)
    assert len(np.load(io.BytesIO(embed(images, skip=True)))) == 30
    contents[9] = None
    write_table(tmp_path / "u.parquet", "bytes", contents)
    with pytest.raises(
        DmlError, match=r"row 9: the column 'bytes' contains NoneType; expected encoded images"
    ):
        embed(open_images(tmp_path / "u.parquet"), "u.npy")


def test_what_holds_no_images_is_named(photos, paths, tmp_path):
    def refused(path, message):
        with pytest.raises(DmlError, match=message):
            open_images(path)

    refused(tmp_path / "none", "is not a folder; expected a folder of images.* or a table")
    (tmp_path / "notes.tar").write_bytes(b"no archive" * 100)
    refused(tmp_path / "notes.tar", "can't read the archive .* expected an uncompressed tar")
    (tmp_path / "notes.parquet").write_bytes(b"no table")
    refused(tmp_path / "notes.parquet", "can't read the table")
    refused(tmp_path, r"contains \.parquet and \.tar files; expected images or a single type")
    (tmp_path / "lone.png").touch()
    assert open_images(tmp_path).names == [
        "lone.png"
    ]  # other files in a folder of images are ignored
    (tmp_path / "empty").mkdir()
    write_tar(tmp_path / "empty" / "0.tar", photos, [])
    refused(tmp_path / "empty", "contains no images: no member ends in")
    write_table(tmp_path / "other.parquet", "picture", [b""])
    refused(
        tmp_path / "other.parquet", "has columns id, picture; expected encoded images in 'image' or"
    )


@pytest.mark.parametrize("codes", [False, True], ids=["floats", "codes"])
def test_results_in_parquet(model, photos, paths, tmp_path, codes):
    plan = EmbeddingPlan(model, list_folder(photos), codes, chunk_size=8)
    for name in ("e.npy", "e.parquet"):
        labels = tmp_path / f"labels-of-{name}.npy"
        embed_images(plan, tmp_path / name, ThisProcess(), labels=labels)
    table = pq.read_table(tmp_path / "e.parquet")
    assert table.column_names == ["path", "code" if codes else "embedding", "label"]
    assert table["path"].to_pylist() == paths
    assert table["label"].to_pylist() == np.load(labels).tolist()
    rows = table[1].to_pylist()
    found = (
        np.array([np.frombuffer(row, np.uint8) for row in rows])
        if codes
        else np.array(rows, np.float32)
    )
    np.testing.assert_array_equal(found, np.load(tmp_path / "e.npy"))
    first = (tmp_path / "e.parquet").read_bytes()
    (tmp_path / "again").mkdir()
    embed_images(
        plan, tmp_path / "again" / "e.parquet", ThisProcess(), labels=tmp_path / "again" / "l.npy"
    )
    assert (tmp_path / "again" / "e.parquet").read_bytes() == first


def test_batches_of_any_kind_give_the_bits_of_files(
    photo_run, registry, model, photos, paths, whole
):
    embedder = Embedder(photo_run, registry=registry)
    expected = np.load(io.BytesIO(whole))[8:16]
    batch = [photos / name for name in paths[8:16]]
    encoded = np.array([path.read_bytes() for path in batch], dtype=object)
    for columns in (
        {"path": np.array([str(path) for path in batch])},
        {"bytes": encoded, "path": np.array(paths[8:16])},
        {"png": encoded, "__key__": np.array([path.stem for path in batch])},
        {"image": np.array([{"bytes": content, "path": ""} for content in encoded])},
    ):
        done = embedder(columns)
        np.testing.assert_array_equal(done.pop("embedding"), expected)
        assert done.keys() == columns.keys()
    pixels = [np.asarray(Image.open(path)) for path in batch]
    # The last image is the JPEG, which will be decoded to a fraction of the full size if `Embedder`
    # is given the file.
    np.testing.assert_array_equal(embedder({"image": pixels})["embedding"][:7], expected[:7])
    with pytest.raises(
        DmlError, match="contains the columns id; expected images in one of: image, bytes"
    ):
        embedder({"id": np.arange(3)})
    with pytest.raises(DmlError, match="row 0 of a batch is int"):
        embedder({"image": [3]})


def test_an_embedder_opens_its_run_once_and_drops_bad_images(
    photo_run, photos, paths, monkeypatch, registry
):
    from dml_train.trained import embedder

    opened = []

    def opening(path, used, step):
        opened.append(path)
        return open_model(path, registry, step=step)

    monkeypatch.setattr(embedder, "open_model", opening)
    network = pickle.loads(pickle.dumps(Embedder(photo_run, skip=True, threads=1)))
    assert opened == []
    contents = [(photos / name).read_bytes() for name in paths[:3]]
    batch = {"bytes": [contents[0], b"no image", contents[2]], "id": np.array([5, 6, 7])}
    done = network(batch)
    assert done["id"].tolist() == [5, 7]
    assert len(done["embedding"]) == len(done["bytes"]) == 2
    assert len(pickle.loads(pickle.dumps(network))(batch)["embedding"]) == 2
    network(batch)
    assert len(opened) == 2
    with pytest.raises(DmlError, match="row 1 of a batch: not an image"):
        Embedder(photo_run)(batch)


def test_images_of_many_files_are_indexed_like_a_list():
    files, ends = [Path("a.tar"), Path("b.tar")], [1, 3]
    names = PathTable(map(Path, ("x", "y", "z")))
    members = TarMembers(files, ends, names, np.arange(6).reshape(3, 2))
    rows = TableRows(
        [SimpleNamespace(file=files[0], num_rows=1), SimpleNamespace(file=files[1], num_rows=2)],
        "image",
    )
    for images in (members, rows):
        listed = list(images)
        assert [image.file for image in listed] == [files[0], files[1], files[1]]
        assert [images[index] for index in (-3, -2, -1)] == listed
        with pytest.raises(IndexError):
            images[3]
