"""Images read from a table, in any order, must equal the same images in files: bits, splits and
errors.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from train_support.photo_world import write_photos

from dml_core import DmlError, FileBackedSplit, registry
from dml_core.testing import DatasetContract
from dml_train.data import stored
from dml_train.data.factories import image_folder, table
from dml_train.data.image_table import read_image_table
from dml_train.data.inspection import inspect_images

pa = pytest.importorskip("pyarrow", reason="reads and writes tables")
pq = pytest.importorskip("pyarrow.parquet", reason="reads and writes tables")

OPTIONS = {"resize": 24, "crop": 16}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), classes=4, each=5)


@pytest.fixture(scope="module")
def files(photos) -> list[Path]:
    """List the photos' files in shuffled order, so that a class is spread over row groups."""
    return [*np.random.default_rng(0).permutation(sorted(photos.glob("*/*.png")))]


def write(path: Path, columns: dict, rows: int = 3) -> Path:
    """Write a table with groups of three rows: Parquet, an Arrow file, or a stream as `datasets`
    writes it.
    """
    content = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(content, path, row_group_size=rows)
    else:
        make = pa.ipc.new_file if path.suffix == ".feather" else pa.ipc.new_stream
        with make(path, content.schema) as out:
            out.write_table(content, max_chunksize=rows)
    return path


def columns_of(files: list[Path], kind: str = "bytes") -> dict:
    cells = {
        "bytes": lambda file: file.read_bytes(),
        "struct": lambda file: {"bytes": file.read_bytes(), "path": None},
        "path": str,
        "struct of paths": lambda file: {"bytes": None, "path": str(file)},
    }[kind]
    image = [*map(cells, files)]
    if kind.startswith("struct"):
        image = pa.array(image, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    return {"image": image, "label": [file.parent.name for file in files]}


def save_to_disk(folder: Path, columns: dict) -> None:
    """Write the layout of `datasets`: a stream in two files, with the names of a ClassLabel, and a
    stale file.
    """
    names = sorted(set(columns["label"]))
    labels = [names.index(label) for label in columns["label"]]
    about = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    schema = pa.table(columns | {"label": labels}).schema.with_metadata(
        {"huggingface": json.dumps(about)}
    )
    content = pa.table(columns | {"label": labels}, schema=schema)
    folder.mkdir(parents=True)
    parts = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
    for i, part in enumerate((*parts, "cache-stale.arrow")):
        with pa.ipc.new_stream(folder / part, schema) as out:
            out.write_table(content.slice(i * 11, 11), max_chunksize=4)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": part} for part in parts]})
    )


def load(split, seeds: bool) -> torch.Tensor:
    order = np.random.default_rng(1).permutation(len(split))
    return split.load(order, order.astype(np.uint64) if seeds else None)


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow"])
@pytest.mark.parametrize("kind", ["bytes", "struct", "path", "struct of paths"])
def test_a_table_gives_the_batches_of_a_folder(photos, files, tmp_path, suffix, kind):
    folder = image_folder(str(photos), **OPTIONS)
    files = sorted(files)  # as in a folder; a class still spans multiple row groups
    read = table(str(write(tmp_path / f"t{suffix}", columns_of(files, kind))), **OPTIONS)
    for split, expected in ((read.train, folder.train), (read.test, folder.test)):
        assert split.class_names == expected.class_names
        assert np.array_equal(split.labels, expected.labels)
        for seeds in (False, True):
            assert torch.equal(
                load(pickle.loads(pickle.dumps(split)), seeds), load(expected, seeds)
            )
        assert isinstance(split, FileBackedSplit) == (kind == "path")


@given(st.data())
def test_any_order_of_rows_and_any_groups_of_rows_give_the_cells(tmp_path_factory, data):
    """Compare with a list, while the cache of row groups is so small that groups are read again."""
    cells = data.draw(st.lists(st.binary(max_size=4), min_size=1, max_size=12))
    suffix = data.draw(st.sampled_from([".parquet", ".feather", ".arrow"]))
    path = tmp_path_factory.mktemp("cells") / f"t{suffix}"
    write(path, {"image": cells}, data.draw(st.integers(1, 5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "_MOST_CACHED", data.draw(st.integers(0, 20)))
        for row in data.draw(st.lists(st.integers(0, len(cells) - 1), max_size=20)):
            assert stored.TableRow(path, row, "image").read() == cells[row]


def test_only_the_row_groups_of_a_batch_are_read_and_each_is_read_once(
    files, tmp_path, monkeypatch
):
    path = write(tmp_path / "t.parquet", columns_of(files))
    read = []
    whole = stored.TableFile.read_cells
    monkeypatch.setattr(
        stored.TableFile, "read_cells", lambda s, *place: read.append(place[1]) or whole(s, *place)
    )
    rows = table(str(path), **OPTIONS).train.images
    assert read == []  # neither images nor headers are read at the start
    rows.images[4].read(), rows.images[5].read(), rows.images[17].read(), rows.images[3].read()
    assert read == [1, 5]


def test_a_folder_that_datasets_saved_has_its_class_names_and_splits(files, tmp_path):
    by_name = sorted(files)
    save_to_disk(tmp_path / "one", columns_of(files))
    parts = read_image_table(str(tmp_path / "one"))
    assert sorted({**parts.train, **parts.test}) == [f"class-{c}" for c in range(4)]
    assert sum(map(len, [*parts.train.values(), *parts.test.values()])) == 20
    save_to_disk(tmp_path / "two" / "train", columns_of(by_name[:10]))
    save_to_disk(tmp_path / "two" / "test", columns_of(by_name[10:]))
    parts = read_image_table(str(tmp_path / "two"))
    assert (sorted(parts.train), sorted(parts.test)) == (
        ["class-0", "class-1"],
        ["class-2", "class-3"],
    )
    assert parts.train["class-1"][2].read() == by_name[7].read_bytes()
    parts = read_image_table(str(tmp_path / "two"), split="", train_fraction=0.75)
    assert (len(parts.train), len(parts.test)) == (3, 1)


def test_files_are_splits_by_name_and_the_column_split_comes_first(files, tmp_path):
    by_name = sorted(files)
    write(tmp_path / "data" / "train-00000-of-00001.parquet", columns_of(by_name[:10]))
    write(tmp_path / "data" / "test-00000-of-00001.parquet", columns_of(by_name[10:]))
    parts = read_image_table(str(tmp_path))
    assert (sorted(parts.train), sorted(parts.test)) == (
        ["class-0", "class-1"],
        ["class-2", "class-3"],
    )
    write(tmp_path / "data" / "validation-0.parquet", columns_of(by_name[:1]))
    with pytest.raises(
        DmlError, match=r"validation-0\.parquet, row 0: split is 'validation'; expected one of"
    ):
        read_image_table(str(tmp_path))
    split = ["query" if i % 5 else "gallery" for i in range(10)]
    given = columns_of(by_name[:15]) | {"split": [*split, *["train"] * 5], "group": [1, 2, 3] * 5}
    read = table(str(write(tmp_path / "own" / "t.parquet", given)), **OPTIONS)
    assert [len(part) for part in (read.train, read.test, read.gallery)] == [5, 8, 2]
    assert read.test.groups.tolist() == ["2", "3", "1", "2", "1", "2", "3", "1"]


@pytest.mark.parametrize("kind", ["bytes", "path"])
@pytest.mark.parametrize("cached", [False, True], ids=["decoded", "cached"])
def test_a_box_is_cropped_first(files, tmp_path, kind, cached):
    """Two boxes of the same file are different images; a large JPEG is cropped at full size, after
    it is turned.
    """
    for i, label in enumerate("abab"):
        noise = np.random.default_rng(i).integers(0, 256, (300, 400, 3), dtype=np.uint8)
        turned = Image.Exif()
        turned[0x0112] = 6
        Image.fromarray(noise).save(tmp_path / f"{label}{i}.jpg", exif=turned)
    of_files = [tmp_path / name for name in ("a0.jpg", "b1.jpg", "a0.jpg", "b3.jpg")]
    boxes = [[0, 0, 300, 400], [10, 20, 210, 320], [100, 300, 140.4, 399.6], [7, 5, 8, 6]]
    columns = columns_of(of_files, kind) | {"label": [*"abab"], "box": boxes}
    cache = {"cache": str(tmp_path / "cache")} if cached else {}
    read = table(str(write(tmp_path / "t.parquet", columns)), **OPTIONS, **cache)
    (tmp_path / "cut").mkdir()
    for i, (file, (left, top, right, bottom)) in enumerate(zip(of_files, boxes)):
        upright = np.rot90(np.asarray(Image.open(file)), -1)
        cut = upright[round(top) : round(bottom), round(left) : round(right)]
        (tmp_path / "cut" / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(np.ascontiguousarray(cut)).save(tmp_path / "cut" / "ab"[i % 2] / f"{i}.png")
    folder = image_folder(str(tmp_path / "cut"), **OPTIONS)
    for split, expected in ((read.train, folder.train), (read.test, folder.test)):
        assert torch.equal(load(split, True), load(expected, True))
        assert not isinstance(split, FileBackedSplit)


BAD = {
    "a missing column": (
        {"lable": [*"abc"]}, {},
        r"lacks the column 'label'; did you mean 'lable'\? it has: image, lable",
    ),
    "a named column": ({}, {"group": "camera"},
        r"lacks the column 'camera'; it has: image, label; dataset\.group"),
    "a null label": ({"label": ["a", None, "b"]}, {},
        r"t\.parquet, row 1: the column 'label' is empty"),
    "empty labels": ({"label": ["", "a", ""]}, {},
        r"row 0: the column 'label' is empty \(2 rows, also .*row 2\)"),
    "a label of another type": ({"label": [0.5, 1.0, 2.0]}, {},
        "'label' of .* contains double; expected strings or int"),
    "an image of another type": ({"image": [1, 2, 3]}, {},
        "'image' of .* contains int64; expected encoded images"),
    "a null image": ({"image": [b"a", b"b", None]}, {}, r"row 2: the column 'image' is empty"),
    "an image without bytes": (
        {"image": [{"bytes": b"a"}, {"bytes": None}, {"bytes": b"c"}]}, {},
        "row 1: the column 'image' is empty",
    ),
    "a null path": ({"image": ["a", None, "b"]}, {}, "row 1: the column 'image' is empty"),
    "a missing file": ({"image": ["x.png", "y.png", "z.png"]}, {},
        r"3 of the 3 images are missing.*row 0\).*root ="),
    "one file twice": ({"image": ["x", "y", "x"]}, {},
        r"row 0 and .*row 2 both name .*x; a duplicate image"),
    "boxes of another type": ({"box": [*"abc"]}, {},
        "'box' contains string; expected lists of four numbers"),
    "a box of three": ({"box": [[0, 0, 1, 1], [0, 0, 1], None]}, {},
        r"row 1: .* is not four numbers.*\(2 rows"),
    "an empty box": ({"box": [[0, 0, 1, 1], [0, 0, 1, 1], [5, 0, 5, 1]]}, {},
        "row 2: the column 'box' is not a box"),
    "a box outside": (
        {"box": [[0, 0, 1, 1], [0, 0, 25, 1], [0, 0, 1, 1]]}, {},
        r"row 1: the box \[0, 0, 25, 1\] is not inside the image of 24 × 2. pixels",
    ),
    "an unknown split": ({"split": ["train", "tets", "test"]}, {},
        r"row 1: split is 'tets'; did you mean 'test'"),
    "a class in both": (
        {"label": [*"aba"], "split": ["train", "train", "test"]}, {},
        "'a' is in the train part.*split = ''",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_named_before_training(files, tmp_path, name):
    changes, options, message = BAD[name]
    columns = columns_of(files[:3]) | {"label": [*"abc"]} | changes
    if "lable" in columns:
        del columns["label"]
    path = write(tmp_path / "t.parquet", columns)
    recipe = {"name": "table", "source": str(path), **OPTIONS, **options}
    with pytest.raises(DmlError, match=message) as caught:
        registry().build("datasets", recipe, {"seed": 0})
    assert "\n" not in str(caught.value).partition("\n(on_bad_image")[0]


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow"])
def test_a_truncated_table_and_other_files_are_refused(files, tmp_path, suffix):
    whole = write(tmp_path / f"t{suffix}", columns_of(files)).read_bytes()
    (tmp_path / f"cut{suffix}").write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(DmlError, match=rf"can't read the table .*cut\{suffix}"):
        read_image_table(str(tmp_path / f"cut{suffix}"))
    empty = {"image": pa.array([], "binary"), "label": pa.array([], "string")}
    with pytest.raises(DmlError, match="has 0 classes; expected at least 2"):
        read_image_table(str(write(tmp_path / f"none{suffix}", empty)))
    write(tmp_path / "other" / f"0{suffix}", columns_of(files[:2]))
    write(tmp_path / "other" / f"1{suffix}", columns_of(files[:2], "path"))
    with pytest.raises(
        DmlError, match=r"columns of .*0\..* and another table in its folder differ: .*isn't binary"
    ):
        read_image_table(str(tmp_path / "other"))
    with pytest.raises(DmlError, match=r"nothing doesn't exist; expected a file \(\.arrow"):
        read_image_table(str(tmp_path / "nothing"))


def test_bad_images_are_named_by_row_or_omitted(files, tmp_path):
    columns = columns_of(sorted(files))
    columns["image"][3] = columns["image"][3][:50]
    path = str(write(tmp_path / "t.parquet", columns))
    split = table(path, split_seed=1, **OPTIONS).train
    with pytest.raises(DmlError, match=r"can't read the image .*t\.parquet, row 3: "):
        [part.load(np.arange(len(part))) for part in (split, table(path, **OPTIONS).test)]
    kept = table(path, on_bad_image="skip", **OPTIONS)
    assert len(kept.train) + len(kept.test) == 19
    assert len(kept.train.load(np.arange(len(kept.train)))) == len(kept.train)


def test_a_table_is_inspected_like_a_folder(photos, files, tmp_path):
    columns = columns_of([*sorted(files), sorted(files)[0]])
    columns["image"][3] = b"no image"
    path = write(tmp_path / "t.parquet", columns)
    found = inspect_images(path)
    assert [image.row for image in found.bad] == [3]
    assert [[image.row for image in group] for group in found.duplicates] == [[0, 20]]
    assert found.options == {"name": "table", "source": str(path), "root": str(tmp_path)}
    assert inspect_images(tmp_path).options["name"] == "table"
    assert not inspect_images(write(tmp_path / "u.parquet", columns_of(files))).bad


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def members_of(files: list[Path], kind: str = "cls") -> list[tuple[str, bytes]]:
    """Return the members of samples with a label in .cls, or in .json together with a group and a
    box.
    """
    found = []
    for i, file in enumerate(files):
        label = file.parent.name
        about = {"species": label, "group": i % 2, "box": [0, 0, 9 + i, 9], "width": 24}
        found += [(f"a.b/{i:03}.png", file.read_bytes()), (f"a.b/{i:03}.note.txt", b"-")]
        found.append(
            (f"a.b/{i:03}.{kind}", label.encode() if kind == "cls" else json.dumps(about).encode())
        )
    return found


def test_archives_give_the_batches_of_a_folder(photos, files, tmp_path, monkeypatch):
    folder = image_folder(str(photos), **OPTIONS)
    files = sorted(files)
    write_tar(tmp_path / "shard-0.tar", members_of(files[:9]))
    write_tar(tmp_path / "shard-1.tar", members_of(files[9:]))
    with monkeypatch.context() as patch:
        patch.setattr(stored.TarMember, "read", None)  # images aren't read at the start
        read = table(str(tmp_path), **OPTIONS)
    for split, expected in ((read.train, folder.train), (read.test, folder.test)):
        assert split.class_names == expected.class_names
        for seeds in (False, True):
            assert torch.equal(
                load(pickle.loads(pickle.dumps(split)), seeds), load(expected, seeds)
            )
    found = inspect_images(tmp_path)
    assert (found.options["name"], len(found.sizes), found.bad) == ("table", 20, {})
    skipped = table(str(tmp_path), on_bad_image="skip", cache=str(tmp_path / "cache"), **OPTIONS)
    assert torch.equal(load(skipped.test, True), load(folder.test, True))


def test_values_of_samples_are_columns_and_archives_are_splits(files, tmp_path):
    files = sorted(files)
    write_tar(tmp_path / "train-0.tar", members_of(files[:10], "json"))
    write_tar(tmp_path / "test-0.tar", members_of(files[10:], "json"))
    read = table(str(tmp_path), label="species", **OPTIONS)
    assert (read.train.class_names, read.test.class_names) == (
        ("class-0", "class-1"),
        ("class-2", "class-3"),
    )
    assert read.test.groups.tolist() == ["0", "1"] * 5
    assert read.train.images[3].box == (0, 0, 12, 9)


BAD_ARCHIVES = {
    "compressed": (lambda m: m, gzip.compress, {},
        r"t\.tar: .*expected a complete, uncompressed tar.*gunzip"),
    "a key twice": (lambda m: [*m, m[0]], bytes, {},
        r"t\.tar contains two members 'a\.b/000\.png'"),
    "no image": (lambda m: m[1:], bytes, {},
        r"the sample 'a\.b/000' lacks an image; it has: note\.txt, cls"),
    "another image": (lambda m: m, bytes, {"image": "webp"}, "the sample 'a.b/000' lacks an image"),
    "no label": (lambda m: [m[0], *m[3:]], bytes, {}, r"000\.png: the column 'label' is empty"),
    "no labels": (lambda m: m[::3], bytes, {}, r"t\.tar lacks the column 'label'; it has: ;"),
    "a missing column": (lambda m: m, bytes, {"group": "place"},
        r"lacks the column 'place'; it has: cls; data"),
    "mixed types": (
        lambda m: [*m, ("x.png", m[0][1]), ("x.json", b'{"label": 3}'), ("y.png", b""),
            ("y.json", b'{"label": "a"}')],
        bytes, {}, "the column 'label' of .* has mixed types",
    ),
    "no JSON": (lambda m: [*m, ("x.json", b"{")], bytes, {},
        r"can't read the archive .*Expecting property name"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ARCHIVES)
def test_bad_archives_are_refused_before_training(files, tmp_path, name):
    change, damage, options, message = BAD_ARCHIVES[name]
    path = write_tar(tmp_path / "t.tar", change(members_of(files[:4])))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DmlError, match=message):
        table(str(path), **OPTIONS, **options)


def test_an_archive_cut_anywhere_is_refused(files, tmp_path):
    path = write_tar(tmp_path / "t.tar", members_of(files[:4]))
    whole = path.read_bytes()
    read_image_table(str(path))
    for length in [*range(0, len(whole.rstrip(b"\0")), 512), 700, 512 * 3 + 5]:
        path.write_bytes(whole[:length])
        with pytest.raises(
            DmlError,
            match=r"can't read the archive .*t\.tar: .* expected a complete, uncompressed tar",
        ):
            read_image_table(str(path))


def test_a_compressed_archive_and_mixed_types_of_files_are_refused(files, tmp_path):
    (tmp_path / "t.tar.gz").touch()
    for source in (tmp_path, tmp_path / "t.tar.gz"):
        with pytest.raises(DmlError, match=r"expected a file \(.*, or \.tar without compression\)"):
            read_image_table(str(source))
    write(tmp_path / "t.parquet", columns_of(files[:1]))
    write_tar(tmp_path / "t.tar", [])
    with pytest.raises(
        DmlError, match=r"contains \.parquet and \.tar files; expected .* files of one type"
    ):
        read_image_table(str(tmp_path))


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    for name, value in {
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return pytest.importorskip("datasets", reason="writes files, and loads 'hf:' sources")


def test_what_datasets_saves_and_loads_gives_the_batches_of_a_folder(
    datasets, photos, files, tmp_path
):
    """The folder of `save_to_disk` contains a DatasetDict; the local builder reads Parquet, and
    caches Arrow files.
    """
    folder = image_folder(str(photos), **OPTIONS)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=[f"class-{c}" for c in range(4)]),
        }
    )
    splits = datasets.DatasetDict()
    for split, part in (("train", folder.train), ("test", folder.test)):
        rows = {
            "image": [*map(str, part.files)],
            "label": [file.parent.name for file in part.files],
        }
        splits[split] = datasets.Dataset.from_dict(rows, features=features)
        splits[split].to_parquet(tmp_path / "parquet" / f"{split}-00000-of-00001.parquet")
    splits.save_to_disk(tmp_path / "saved", num_shards={"train": 2, "test": 1})
    sources = [tmp_path / "saved", tmp_path / "parquet", f"hf:{tmp_path / 'parquet'}"]
    for read in (table(str(source), **OPTIONS) for source in sources):
        for split, expected in ((read.train, folder.train), (read.test, folder.test)):
            assert split.class_names == expected.class_names
            assert torch.equal(load(split, True), load(expected, True))


def test_a_source_that_datasets_cannot_load_is_named(datasets, tmp_path):
    with pytest.raises(DmlError, match=r"datasets can't load '.*nothing': \w+: "):
        read_image_table(f"hf:{tmp_path / 'nothing'}")


class TestTable(DatasetContract):
    @pytest.fixture(autouse=True)
    def _table(self, files, tmp_path):
        self.path = write(tmp_path / "t.parquet", columns_of(files))

    def make_dataset(self):
        return table(str(self.path), **OPTIONS)
