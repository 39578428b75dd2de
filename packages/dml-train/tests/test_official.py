"""The published data sets are found in their official layouts, and refused if counts or lists are wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from train_support.official_trees import (
    MAKERS,
    Pictures,
    make_cub,
    quick_folder,
    write,
    write_cars_annotations,
)

from dml_core import DmlError, registry
from dml_train.data.published.official import list_missing
from dml_train.data.published.sets import OFFICIAL
from dml_train.data.published.vehicleid import describe_vehicleid, read_vehicleid


@pytest.fixture
def quick() -> Iterator[Path]:
    with quick_folder("dml-official-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def whole_cub() -> Iterator[Path]:
    """The complete CUB."""
    with quick_folder("dml-official-") as folder:
        make_cub(Path(folder) / "cub", Pictures(Path(folder) / "sources"))
        yield Path(folder) / "cub"


@pytest.fixture
def cub(whole_cub: Path, tmp_path: Path) -> Path:
    """A folder that holds the complete CUB, with lists to change."""
    (tmp_path / "CUB_200_2011").mkdir()
    (tmp_path / "CUB_200_2011" / "images").symlink_to(whole_cub / "images")
    for file in whole_cub.glob("*.txt"):
        shutil.copy(file, tmp_path / "CUB_200_2011")
    return tmp_path


def replace(file: Path, old: str, new: str, count: int = 1) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, count), encoding="utf-8")


@pytest.mark.parametrize("name", MAKERS)
def test_a_complete_tree_has_the_published_counts(quick, name):
    MAKERS[name](quick / "data" / "as unpacked", Pictures(quick / "sources"))
    official = OFFICIAL[name]
    parts = official.read(str(quick / "data"))  # which compares the counts
    assert not parts.train.keys() & parts.test.keys()
    # Both the folder and its parent are accepted as root.
    assert official.find(quick / "data" / "as unpacked") == official.find(quick / "data")


@pytest.mark.parametrize("images", ["Img/img", "img"])
@pytest.mark.parametrize("lists", ["Eval", "."])
def test_in_shop_is_found_in_the_layouts_of_its_shared_folder(tmp_path, images, lists):
    rows = ["img/a.jpg  id_1  train", "img/b.jpg  id_2  query", "img/c.jpg  id_2  gallery"]
    write(tmp_path / "In-shop" / lists / "list_eval_partition.txt", ["3", "heading", *rows])
    for name in "abc":
        write(tmp_path / "In-shop" / images / f"{name}.jpg", ["a picture"])
    in_shop = OFFICIAL["in-shop"]
    parts = in_shop.list_parts(in_shop.find(tmp_path))
    assert not list_missing(parts)
    assert [file.name for file in parts.test["id_2"]] == ["b.jpg"]
    assert [file.name for file in parts.gallery["id_2"]] == ["c.jpg"]


def test_cameras_are_groups_and_junk_is_left_out(tmp_path):
    names = {
        "bounding_box_train": ["0002_c1s1_000451_03"],
        "query": ["0001_c1s1_000151_00"],
        "bounding_box_test": ["0001_c2s1_000151_00", "0000_c3s2_000151_01", "-1_c1s1_000151_02"],
    }
    for folder, files in names.items():
        for file in files:
            write(tmp_path / folder / f"{file}.jpg", ["a picture"])
    market = OFFICIAL["market1501"]
    parts = market.list_parts(market.find(tmp_path))
    assert {name: [file.stem for file in files] for name, files in parts.gallery.items()} == {
        "0000": ["0000_c3s2_000151_01"],
        "0001": ["0001_c2s1_000151_00"],
    }
    assert {file.stem: group for file, group in parts.groups.items()} == {
        "0002_c1s1_000451_03": "c1",
        "0001_c1s1_000151_00": "c1",
        "0001_c2s1_000151_00": "c2",
        "0000_c3s2_000151_01": "c3",
    }
    write(tmp_path / "query" / "a.jpg", ["a picture"])
    with pytest.raises(DmlError, match=r"a\.jpg isn't named by identity and camera"):
        market.read(str(tmp_path))
    shutil.rmtree(tmp_path / "query")
    with pytest.raises(DmlError, match=r"can't read .*query: No such file.*incompletely unpacked"):
        market.read(str(tmp_path))


def test_vehicles_are_read_by_the_same_names(tmp_path):
    names = {
        "image_train": "0002_c002_00030600_0",
        "image_query": "0001_c001_00016450_0",
        "image_test": "0001_c020_00016450_0",
    }
    for folder, name in names.items():
        write(tmp_path / "VeRi" / folder / f"{name}.jpg", ["a picture"])
    veri = OFFICIAL["veri776"]
    parts = veri.list_parts(veri.find(tmp_path))
    assert [[*classes] for classes in parts.by_name().values()] == [["0002"], ["0001"], ["0001"]]
    assert {file.stem: group for file, group in parts.groups.items()} == {
        "0002_c002_00030600_0": "c002",
        "0001_c001_00016450_0": "c001",
        "0001_c020_00016450_0": "c020",
    }
    expected = r"train has 1 images of 1 classes \(published: 37,778 of 576\)"
    with pytest.raises(DmlError, match=rf"not the complete VeRi-776: {expected}"):
        veri.read(str(tmp_path))


def vehicle_tree(root: Path, vehicles: int) -> dict[str, list[str]]:
    """Write VehicleID's lists with test vehicles of two to five images; return the images of each."""
    images = {str(v): [f"{100 * v + i:07}" for i in range(2 + v % 4)] for v in range(vehicles)}
    lines = [f"{image} {vehicle}" for vehicle, names in images.items() for image in names]
    write(root / "train_test_split" / f"test_list_{vehicles}.txt", lines[::-1])
    write(root / "train_test_split" / "train_list.txt", ["0000001 9001", "0000002 9002", "0000003 9001"])
    return images


@pytest.mark.parametrize("vehicles", [800, 2400])
def test_one_image_of_each_vehicle_is_the_gallery_and_depends_on_draw_and_vehicle_alone(tmp_path, vehicles):
    images = vehicle_tree(tmp_path / "VehicleID_V1.0", vehicles)
    chosen = []
    for draw in (0, 1, 0):
        vehicle_id = describe_vehicleid(vehicles, draw)
        parts = vehicle_id.list_parts(vehicle_id.find(tmp_path))
        assert {name: len(files) for name, files in parts.train.items()} == {"9001": 2, "9002": 1}
        assert parts.groups is None
        assert parts.gallery.keys() == parts.test.keys() == images.keys()
        for vehicle, names in images.items():
            (gallery,) = parts.gallery[vehicle]
            queries = [file.stem for file in parts.test[vehicle]]
            assert sorted([gallery.stem, *queries]) == names
            assert gallery == tmp_path / "VehicleID_V1.0" / "image" / f"{gallery.stem}.jpg"
        chosen.append({vehicle: files[0].stem for vehicle, files in parts.gallery.items()})
    first, second, again = chosen
    assert first == again
    differing = sum(first[vehicle] != second[vehicle] for vehicle in images)
    assert vehicles / 2 < differing < vehicles  # of draws from 2 to 5 images, 68 % are expected
    places = np.array([names.index(first[vehicle]) / (len(names) - 1) for vehicle, names in images.items()])
    assert abs(places.mean() - 0.5) < 5 * 0.5 / np.sqrt(vehicles)


def test_wrong_options_and_lists_of_vehicleid_are_refused(tmp_path):
    vehicle_tree(tmp_path, 800)
    for options in ({"vehicles": 1000}, {"draw": -1}):
        with pytest.raises(ValueError, match="expected 800, 1600 or 2400, and at least 0"):
            read_vehicleid(str(tmp_path), **options)
    with pytest.raises(DmlError, match=r"can't read .*test_list_2400\.txt"):
        read_vehicleid(str(tmp_path))
    with pytest.raises(DmlError, match=r"images in the lists of .* are missing, e\.g\. .*image/"):
        read_vehicleid(str(tmp_path), vehicles=800)
    write(tmp_path / "train_test_split" / "test_list_800.txt", ["0000001 car"])
    with pytest.raises(DmlError, match="contains 'car'; expected a number"):
        read_vehicleid(str(tmp_path), vehicles=800)


def test_a_recipe_builds_a_published_data_set(cub):
    table = {"name": "cub", "root": str(cub), "resize": 8, "crop": 7, "square": True, "train_crop": "random"}
    dataset = registry().build("datasets", table, {"seed": 0})
    assert (len(dataset.train), len(dataset.test), dataset.gallery) == (5_864, 5_924, None)
    assert dataset.train.class_names[0] == "001.Bird_1"
    assert dataset.test.class_names[0] == "101.Bird_101"
    batch = dataset.train.load(np.array([0, 5_863]), np.array([1, 2], dtype=np.uint64))
    assert batch.shape == (2, 3, 7, 7)


# --- missing files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cub", r"CUB_200_2011\.tgz \(1\.1 GB\) from https://data\.caltech\.edu/.*dml data fetch cub --root"),
        ("cars196", r"CARS196\.zip \(1\.9 GB\) from http://ftp\.cs\.stanford\.edu/.*dml data fetch cars196"),
        ("sop", r"Products\.zip \(2\.9 GB\) from http://ftp\.cs\.stanford\.edu/.*dml data fetch sop --root"),
        ("in-shop", r"img\.zip \(about 0\.5 GB\).*download it by hand.*InShopRetrieval\.html"),
        ("market1501", r"v15\.09\.15\.zip \(about 150 MB\).*download it by hand.*project_reid\.html"),
        (
            "vehicleid",
            r"VehicleID_V1\.0\.zip.*on request \(https://pkuml\.org/resources/pku-vehicleid\.html\)",
        ),
        ("veri776", r"VeRi\.zip.*on request \(https://github\.com/JDAI-CV/VeRidataset\)"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_missing_data_set_is_reported_with_source_and_size_of_its_download(tmp_path, name, message, exists):
    root = tmp_path if exists else tmp_path / "nowhere"
    start = r"is not in|holds" if exists else "is not a folder"
    with pytest.raises(DmlError, match=rf"(?s){start}.*{message}"):
        OFFICIAL[name].read(str(root))


def test_an_archive_not_yet_unpacked_is_named(tmp_path):
    (tmp_path / "car_ims.tgz").touch()
    with pytest.raises(
        DmlError, match=r"holds car_ims\.tgz, but CARS196 isn't unpacked.*dml data fetch cars196"
    ):
        OFFICIAL["cars196"].read(str(tmp_path))


def test_missing_images_are_counted_and_one_is_named(cub):
    replace(cub / "CUB_200_2011" / "images.txt", "/150.Bird_150_000", "/gone_", count=-1)
    with pytest.raises(DmlError, match=r"(?s)10 of the 11,788 .*150/gone_0\.jpg.*incompletely unpacked"):
        OFFICIAL["cub"].read(str(cub))


# --- damaged lists --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("classes.txt", "007.Bird_7\n", "006.Bird_6\n", "train has 5,864 images of 99 classes"),
        ("classes.txt", "7 007.Bird_7\n", "x 007.Bird_7\n", "'x'; expected a number"),
        (
            "classes.txt",
            "7 007.Bird_7\n",
            "",
            r"names image 355 and class 7, but images\.txt or classes\.txt lacks",
        ),
        ("images.txt", "\n12 ", "\n99999 ", "names image 12 and class 1"),
        ("images.txt", "\n12 ", "\n11 ", "names image 12 and class 1"),
        ("images.txt", "\n12 ", "\n", r"line 12: .* has 1 columns; expected 2"),
        (
            "image_class_labels.txt",
            "\n12 1\n",
            "\n",
            r"not the complete CUB-200-2011: train has 5,863 images of 100 classes \(published: 5,864 of 100\)",
        ),
        ("image_class_labels.txt", "\n12 1\n", "\n12 1\n12 1\n", "train has 5,865 images"),
    ],
)
def test_lists_that_contradict_one_another_are_refused(cub, name, old, new, message):
    replace(cub / "CUB_200_2011" / name, old, new)
    with pytest.raises(DmlError, match=message):
        OFFICIAL["cub"].read(str(cub))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("classes.txt", None, r"can't read .*classes\.txt: No such file.*incompletely unpacked"),
        ("images.txt", b"", r"images\.txt has no entries"),
        ("images.txt", b"1 \xff\xfe\n", r"images\.txt is not a list in UTF-8"),
    ],
    ids=["missing", "empty", "not UTF-8"],
)
def test_a_list_that_cannot_be_read_is_named(tmp_path, name, content, message):
    for file in ("classes.txt", "images.txt"):
        write(tmp_path / file, ["1 a"])
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    with pytest.raises(DmlError, match=message):
        OFFICIAL["cub"].read(str(tmp_path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["img/a.jpg id_1 val"], r"img/a\.jpg is in 'val'; expected one of: train, query, gallery"),
        (["img/a.jpg id_1 train"], "the test part of .* holds no image of any class"),
        (
            ["img/a.jpg id_1 train", "img/b.jpg id_2 query", "img/c.jpg id_3 gallery"],
            r"no class of .*test.* is in .*gallery.*'id_2' and 'id_3'",
        ),
    ],
)
def test_a_partition_that_contradicts_itself_is_refused(tmp_path, rows, message):
    write(tmp_path / "list_eval_partition.txt", [str(len(rows)), "heading", *rows])
    with pytest.raises(DmlError, match=message):
        OFFICIAL["in-shop"].read(str(tmp_path))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("labelled_in", [".", "devkit"])
def test_cars_are_found_in_the_devkits_layout_too(tmp_path, nested, labelled_in):
    root = tmp_path / "stanford_cars"
    names = [f"Car {c}" for c in range(1, 197)]
    (root / "devkit").mkdir(parents=True)
    write_cars_annotations(root / "devkit" / "cars_meta.mat", [], np.array([]), names)
    for part, labels in (("train", [98, 99]), ("test", [1, 196])):
        place = root / f"cars_{part}" / (f"cars_{part}" if nested else ".")
        for file in ("1.jpg", "2.jpg"):
            write(place / file, ["a picture"])
        annotations = {
            "train": "devkit/cars_train_annos.mat",
            "test": f"{labelled_in}/cars_test_annos_withlabels.mat",
        }
        write_cars_annotations(root / annotations[part], ["1.jpg", "2.jpg"], np.array(labels), names, "fname")
    cars = OFFICIAL["cars196"]
    parts = cars.list_parts(cars.find(tmp_path))
    assert not list_missing(parts)
    found = [
        {c: [f.relative_to(root).parts[0] for f in files] for c, files in part.items()} for part in parts[:2]
    ]
    assert found == [
        {"Car 98": ["cars_train"], "Car 1": ["cars_test"]},
        {"Car 99": ["cars_train"], "Car 196": ["cars_test"]},
    ]
    (root / labelled_in / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(DmlError, match=r"not cars_test_annos_withlabels\.mat, without which half"):
        cars.read(str(tmp_path))


def test_a_car_with_an_unknown_class_is_refused(tmp_path):
    write_cars_annotations(tmp_path / "cars_annos.mat", ["a", "b"], np.array([1, 3]), ["Golf", "Polo"])
    with pytest.raises(DmlError, match=r"put .*b into class 3 of 2"):
        OFFICIAL["cars196"].read(str(tmp_path))


@pytest.mark.parametrize(
    ("contents", "lacks"),
    [
        (None, "class_names"),
        ({"other": np.zeros(3)}, "class_names"),
        ({"class_names": np.array([["Golf"]], dtype=object)}, "relative_im_path and class"),
    ],
    ids=["no MATLAB file", "no names", "no annotations"],
)
def test_annotation_files_with_other_contents_are_refused(tmp_path, contents, lacks):
    (tmp_path / "cars_annos.mat").write_bytes(b"not a MATLAB file")
    if contents is not None:
        savemat(tmp_path / "cars_annos.mat", contents)
    expected = "expected the MATLAB file of this name"
    with pytest.raises(DmlError, match=rf"can't read {lacks} in .*cars_annos\.mat: .*{expected}"):
        OFFICIAL["cars196"].read(str(tmp_path))
