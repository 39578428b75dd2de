"""Published data sets are found in the official layouts; wrong counts or lists are errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from train_support.official_trees import (
    CUB_COUNTS,
    draw,
    make_cub,
    reduce,
    write,
    write_cars_annotations,
)

from dml_core import DmlError, registry
from dml_train.data import factories
from dml_train.data.parts import Parts
from dml_train.data.published.official import list_missing
from dml_train.data.published.reidentification import describe_vehicleid, read_vehicleid
from dml_train.data.published.sets import OFFICIAL


def list_in(name: str, root: Path) -> Parts:
    """List a data set below a folder. Counts are not checked, but all images must exist."""
    official = OFFICIAL[name]
    folder = official.find(root)
    assert official.find(folder) == folder  # the folder or the parent folder can be given as root
    parts = official.list_parts(folder)
    assert not list_missing(parts)
    return parts


def names(classes) -> dict[str, list[str]]:
    return {name: [file.stem for file in files] for name, files in classes.items()}


@pytest.fixture
def cub(tmp_path: Path) -> Path:
    make_cub(tmp_path / "CUB_200_2011")
    return tmp_path


def read_cub(root: Path) -> Parts:
    return reduce("cub", CUB_COUNTS).read(str(root))


def test_a_recipe_builds_a_published_data_set(cub, monkeypatch):
    monkeypatch.setattr(factories.cub, "read", reduce("cub", CUB_COUNTS).read)
    table = {
        "name": "cub",
        "root": str(cub),
        "resize": 8,
        "crop": 7,
        "square": True,
        "train_crop": "random",
    }
    dataset = registry().build("datasets", table, {"seed": 0})
    assert (len(dataset.train), len(dataset.test), dataset.gallery) == (16, 8, None)
    assert (dataset.train.class_names, dataset.test.class_names) == (
        ("001.Bird", "002.Bird"),
        ("101.Bird",),
    )
    batch = dataset.train.load(np.array([0, 15]), np.array([1, 2], dtype=np.uint64))
    assert batch.shape == (2, 3, 7, 7)


def test_the_first_98_car_models_train(tmp_path):
    paths = [f"car_ims/{i}.jpg" for i in range(4)]
    models = [f"Car {c}" for c in range(1, 197)]
    write_cars_annotations(tmp_path / "cars_annos.mat", paths, [98, 196, 1, 99], models)
    draw(*(tmp_path / path for path in paths))
    parts = list_in("cars196", tmp_path)
    assert names(parts.train) == {"Car 98": ["0"], "Car 1": ["2"]}
    assert names(parts.test) == {"Car 196": ["1"], "Car 99": ["3"]}


def test_products_are_named_by_kind_and_number(tmp_path):
    for part, kind in (("train", "bicycle"), ("test", "sofa")):
        rows = [f"{i} 7 1 {kind}_final/7_{i}.JPG" for i in range(2)]
        write(
            tmp_path / "sop" / f"Ebay_{part}.txt", ["image_id class_id super_class_id path", *rows]
        )
        draw(*(tmp_path / "sop" / row.split()[-1] for row in rows))
    parts = list_in("sop", tmp_path)
    assert (names(parts.train), names(parts.test)) == (
        {"bicycle 7": ["7_0", "7_1"]},
        {"sofa 7": ["7_0", "7_1"]},
    )


@pytest.mark.parametrize("images", ["Img/img", "img"])
@pytest.mark.parametrize("lists", ["Eval", "."])
def test_in_shop_is_found_in_the_layouts_of_its_shared_folder(tmp_path, images, lists):
    rows = ["img/a.jpg  id_1  train", "img/b.jpg  id_2  query", "img/c.jpg  id_2  gallery"]
    write(tmp_path / "In-shop" / lists / "list_eval_partition.txt", ["3", "heading", *rows])
    draw(*(tmp_path / "In-shop" / images / f"{name}.jpg" for name in "abc"))
    parts = list_in("in-shop", tmp_path)
    assert [names(part) for part in parts[:3]] == [
        {"id_1": ["a"]},
        {"id_2": ["b"]},
        {"id_2": ["c"]},
    ]


def test_cameras_are_groups_and_junk_is_left_out(tmp_path):
    files = {
        "bounding_box_train": ["0002_c1s1_000451_03"],
        "query": ["0001_c1s1_000151_00"],
        "bounding_box_test": ["0001_c2s1_000151_00", "0000_c3s2_000151_01", "-1_c1s1_000151_02"],
    }
    draw(*(tmp_path / "m" / folder / f"{file}.jpg" for folder, of in files.items() for file in of))
    (tmp_path / "m" / "query" / "Thumbs.db").touch()  # the published archive contains this file
    parts = list_in("market1501", tmp_path)
    assert names(parts.gallery) == {
        "0000": ["0000_c3s2_000151_01"],
        "0001": ["0001_c2s1_000151_00"],
    }
    assert {file.stem: group for file, group in parts.groups.items()} == {
        "0002_c1s1_000451_03": "c1",
        "0001_c1s1_000151_00": "c1",
        "0001_c2s1_000151_00": "c2",
        "0000_c3s2_000151_01": "c3",
    }
    draw(tmp_path / "m" / "query" / "a.jpg")
    with pytest.raises(DmlError, match=r"a\.jpg isn't named by identity and camera"):
        OFFICIAL["market1501"].read(str(tmp_path))
    shutil.rmtree(tmp_path / "m" / "query")
    with pytest.raises(DmlError, match=r"can't read .*query: No such file.*incompletely unpacked"):
        OFFICIAL["market1501"].read(str(tmp_path))


def test_vehicles_are_read_by_the_same_names(tmp_path):
    files = {
        "image_train": "0002_c002_00030600_0",
        "image_query": "0001_c001_00016450_0",
        "image_test": "0001_c020_00016450_0",
    }
    draw(*(tmp_path / "VeRi" / folder / f"{name}.jpg" for folder, name in files.items()))
    parts = list_in("veri776", tmp_path)
    assert [[*classes] for classes in parts.by_name().values()] == [["0002"], ["0001"], ["0001"]]
    assert [*parts.groups.values()] == ["c002", "c001", "c020"]


def vehicle_tree(root: Path, vehicles: int) -> dict[str, list[str]]:
    """Write VehicleID's lists using test vehicles of 2 to 5 images; return the images by
    vehicle.
    """
    images = {str(v): [f"{100 * v + i:07}" for i in range(2 + v % 4)] for v in range(vehicles)}
    lines = [f"{image} {vehicle}" for vehicle, names in images.items() for image in names]
    write(root / "train_test_split" / f"test_list_{vehicles}.txt", lines[::-1])
    write(
        root / "train_test_split" / "train_list.txt",
        ["0000001 9001", "0000002 9002", "0000003 9001"],
    )
    return images


@pytest.mark.parametrize("vehicles", [800, 2400])
def test_one_image_of_each_vehicle_is_the_gallery_and_depends_on_draw_and_vehicle_alone(
    tmp_path, vehicles
):
    images = vehicle_tree(tmp_path / "VehicleID_V1.0", vehicles)
    chosen = []
    for number in (0, 1, 0):
        vehicle_id = describe_vehicleid(vehicles, number)
        parts = vehicle_id.list_parts(vehicle_id.find(tmp_path))
        assert {name: len(files) for name, files in parts.train.items()} == {"9001": 2, "9002": 1}
        assert parts.groups is None
        assert parts.gallery.keys() == parts.test.keys() == images.keys()
        for vehicle, listed in images.items():
            (gallery,) = parts.gallery[vehicle]
            assert sorted([gallery.stem, *(file.stem for file in parts.test[vehicle])]) == listed
            assert gallery == tmp_path / "VehicleID_V1.0" / "image" / f"{gallery.stem}.jpg"
        chosen.append({vehicle: files[0].stem for vehicle, files in parts.gallery.items()})
    first, second, again = chosen
    assert first == again
    differing = sum(first[vehicle] != second[vehicle] for vehicle in images)
    assert vehicles / 2 < differing < vehicles  # 68 % of draws from 2 to 5 images should differ
    places = np.array([of.index(first[vehicle]) / (len(of) - 1) for vehicle, of in images.items()])
    assert abs(places.mean() - 0.5) < 5 * 0.5 / np.sqrt(vehicles)


def test_wrong_options_and_lists_of_vehicleid_are_refused(tmp_path):
    vehicle_tree(tmp_path, 800)
    for options, expected in (
        ({"vehicles": 1000}, r".*\[800, 1600, 2400\]"),
        ({"draw": -1}, "at least 0"),
    ):
        table = {"name": "vehicleid", "root": str(tmp_path), **options}
        with pytest.raises(DmlError, match=f"expected {expected}"):
            registry().build("datasets", table, {"seed": 0})
    with pytest.raises(DmlError, match=r"can't read .*test_list_2400\.txt"):
        read_vehicleid(str(tmp_path))
    with pytest.raises(DmlError, match=r"images in the lists of .* are missing, e\.g\. .*image/"):
        read_vehicleid(str(tmp_path), vehicles=800)
    write(tmp_path / "train_test_split" / "test_list_800.txt", ["0000001 car"])
    with pytest.raises(DmlError, match="contains 'car'; expected a number"):
        read_vehicleid(str(tmp_path), vehicles=800)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("labelled_in", [".", "devkit"])
def test_cars_are_found_in_the_devkits_layout_too(tmp_path, nested, labelled_in):
    root = tmp_path / "stanford_cars"
    models = [f"Car {c}" for c in range(1, 197)]
    (root / "devkit").mkdir(parents=True)
    write_cars_annotations(root / "devkit" / "cars_meta.mat", [], [], models)
    labelled = root / labelled_in / "cars_test_annos_withlabels.mat"
    for part, file, labels in (
        ("train", root / "devkit" / "cars_train_annos.mat", [98, 99]),
        ("test", labelled, [1, 196]),
    ):
        place = root / f"cars_{part}" / (f"cars_{part}" if nested else ".")
        draw(place / "1.jpg", place / "2.jpg")
        write_cars_annotations(file, ["1.jpg", "2.jpg"], labels, models, "fname")
    parts = list_in("cars196", tmp_path)
    found = [
        {c: [f.relative_to(root).parts[0] for f in files] for c, files in part.items()}
        for part in parts[:2]
    ]
    assert found == [
        {"Car 98": ["cars_train"], "Car 1": ["cars_test"]},
        {"Car 99": ["cars_train"], "Car 196": ["cars_test"]},
    ]
    labelled.unlink()
    with pytest.raises(
        DmlError, match=r"not cars_test_annos_withlabels\.mat, which gives the classes"
    ):
        OFFICIAL["cars196"].read(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "cub",
            r"CUB_200_2011\.tgz \(1\.1 GB\) from https://data\.caltech\.edu/.*dml data fetch cub "
            r"--root",
        ),
        (
            "cars196",
            r"CARS196\.zip \(1\.9 GB\) from http://ftp\.cs\.stanford\.edu/.*dml data fetch cars196",
        ),
        (
            "sop",
            r"Products\.zip \(2\.9 GB\) from http://ftp\.cs\.stanford\.edu/.*dml data fetch sop "
            r"--root",
        ),
        ("in-shop", r"img\.zip \(about 0\.5 GB\).*download it by hand.*InShopRetrieval\.html"),
        (
            "market1501",
            r"v15\.09\.15\.zip \(about 150 MB\).*download it by hand.*project_reid\.html",
        ),
        (
            "vehicleid",
            r"VehicleID_V1\.0\.zip.*on request "
            r"\(https://pkuml\.org/resources/pku-vehicleid\.html\)",
        ),
        ("veri776", r"VeRi\.zip.*on request \(https://github\.com/JDAI-CV/VeRidataset\)"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_missing_data_set_is_reported_with_source_and_size_of_its_download(
    tmp_path, name, message, exists
):
    root = tmp_path if exists else tmp_path / "nowhere"
    start = r"is not in|contains" if exists else "is not a folder"
    with pytest.raises(DmlError, match=rf"(?s){start}.*{message}"):
        OFFICIAL[name].read(str(root))


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("classes.txt", "2 002.Bird\n", "2 001.Bird\n", "train has 16 images of 1 classes"),
        ("classes.txt", "2 002.Bird\n", "x 002.Bird\n", "'x'; expected a number"),
        (
            "classes.txt",
            "2 002.Bird\n",
            "",
            r"image 8 and class 2, but images\.txt or classes\.txt lacks",
        ),
        ("images.txt", "\n12 ", "\n99999 ", "names image 12 and class 2"),
        ("images.txt", "\n12 ", "\n11 ", "names image 12 and class 2"),
        ("images.txt", "\n12 ", "\n", r"line 13: .* contains 1 columns; expected 2"),
        (
            "image_class_labels.txt",
            "\n12 2\n",
            "\n",
            r"not the complete CUB-200-2011: train has 15 images of 2 classes \(published: 16 of "
            r"2\)",
        ),
        ("image_class_labels.txt", "\n12 2\n", "\n12 2\n12 2\n", "train has 17 images"),
        (
            "classes.txt",
            None,
            None,
            r"can't read .*classes\.txt .*No such file.*unpack the archive again",
        ),
        ("images.txt", None, b"", r"images\.txt is empty"),
        (
            "images.txt",
            None,
            b"1 \xff\xfe\n",
            r"can't read .*images\.txt as a list in UTF-8: .*0xff",
        ),
    ],
)
def test_damaged_lists_and_lists_that_contradict_one_another_are_refused(
    cub, name, old, new, message
):
    file = cub / "CUB_200_2011" / name
    content = file.read_bytes()
    file.unlink()
    if old is not None:
        assert old.encode() in content
        file.write_bytes(content.replace(old.encode(), new.encode(), 1))
    elif new is not None:
        file.write_bytes(new)
    with pytest.raises(DmlError, match=message):
        read_cub(cub)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["img/a.jpg id_1 val"], r"img/a\.jpg is in 'val'; expected one of: train, query, gallery"),
        (["img/a.jpg id_1 train"], "the test part of .* doesn't contain images of any class"),
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


@pytest.mark.parametrize(
    ("contents", "lacks"),
    [
        (None, "class_names"),
        ({"other": np.zeros(3)}, "class_names"),
        ({"class_names": np.array([["Golf"]], dtype=object)}, "relative_im_path and class"),
    ],
    ids=["no MATLAB file", "no names", "no annotations"],
)
def test_annotations_with_an_unknown_class_or_other_contents_are_refused(tmp_path, contents, lacks):
    write_cars_annotations(tmp_path / "cars_annos.mat", ["a", "b"], [1, 3], ["Golf", "Polo"])
    with pytest.raises(DmlError, match=r"put .*b into class 3 of 2"):
        OFFICIAL["cars196"].read(str(tmp_path))
    (tmp_path / "cars_annos.mat").write_bytes(b"not a MATLAB file")
    if contents is not None:
        savemat(tmp_path / "cars_annos.mat", contents)
    expected = "expected the MATLAB file of this name"
    with pytest.raises(DmlError, match=rf"can't read {lacks} in .*cars_annos\.mat: .*{expected}"):
        OFFICIAL["cars196"].read(str(tmp_path))
