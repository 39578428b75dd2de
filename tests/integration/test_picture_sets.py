"""The rules by which benchmarks/pictures builds its sets: classes, lines, the split, team colours, the record."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def load(monkeypatch):
    """Import a module of benchmarks/pictures, whose modules import each other by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks/pictures"))
    return importlib.import_module


def test_names_that_share_a_drawing_are_one_application_unless_a_theme_disagrees(load):
    drawings = {
        "gedit": {"a": "1", "b": "2"},
        "org.gnome.gedit": {"a": "1"},  # another name of a's drawing
        "firefox": {"a": "browser", "b": "3", "c": "4"},
        "epiphany": {"a": "browser", "b": "5", "c": "6"},  # a's drawing stands for any browser
        "alone": {"a": "7"},
        "same": {"a": "8", "b": "8"},
    }
    found = load("names").group_names(drawings)
    assert {tuple(names): themes for names, themes in found} == {
        ("gedit", "org.gnome.gedit"): {"a": "1", "b": "2"},
        ("firefox",): {"b": "3", "c": "4"},
        ("epiphany",): {"b": "5", "c": "6"},
    }


def test_a_sprite_belongs_to_the_longest_name_that_it_continues(load):
    owner = load("units").owner
    stems = ["elves/archer", "elves/archer-lord", "elves/arch"]
    assert owner("elves/archer-bow-1", stems) == "elves/archer"
    assert owner("elves/archer+female", stems) == "elves/archer"
    assert owner("elves/archer-lord", stems) == "elves/archer-lord"
    assert owner("elves/archers", stems) is None
    assert owner("orcs/archer", stems) is None


def test_a_line_of_units_is_on_one_side_and_the_sides_are_even(load):
    units = load("units")
    lines = units.join_lines([{"a": ["b", "c"]}, {"b": []}, {"c": ["d"]}, {"e": ["f"]}, {"g": []}, {"h": []}])
    image = Image.new("RGB", (2, 2))
    classes = {name: {"x": image} for name in "abcdefgh"}
    splits = {split: {*found} for split, found in units.split_by_line(classes, lines).items()}
    assert splits == {"train": {"a", "b", "c", "d"}, "test": {"e", "f", "g", "h"}}


def test_magenta_becomes_a_sides_colour_by_its_brightness(load):
    text = (
        "[color_range]\nid=red\nrgb=FF0000,FFFFFF,000000,FF0000\ndefault=yes\n[/color_range]\n"
        "magenta=808080,000000,FFFFFF,404040\n"
    )
    recolour = load("units").Recolouring(text)
    given = [(128, 128, 128), (0, 0, 0), (255, 255, 255), (64, 64, 64), (1, 2, 3)]
    rgba = np.array([[(*colour, 255) for colour in given]], dtype=np.uint8)
    result = recolour(rgba, "any name")[0, :, :3].tolist()
    # The first shade becomes the middle colour; darker and lighter ones approach black and white.
    assert result == [[255, 0, 0], [0, 0, 0], [255, 255, 255], [128, 0, 0], [1, 2, 3]]


def test_a_root_without_the_packages_is_answered_with_their_names(load, tmp_path):
    picture_set = load("picture_set")
    with pytest.raises(picture_set.MissingPackages, match="apt-get download one two"):
        picture_set.check_packages(tmp_path, ("one", "two"))


def test_the_record_depends_on_the_pixels(load, tmp_path):
    picture_set = load("picture_set")
    folder = tmp_path / "usr/share/doc/one"
    folder.mkdir(parents=True)
    (folder / "copyright").write_text("License: GPL-2\nLicense: MIT\nLicense: GPL-2\n")

    def record(colour):
        picture = {"a": Image.new("RGB", (2, 2), colour), "b": Image.new("RGB", (2, 2))}
        return picture_set.describe("title", tmp_path, ["one"], "tools", {"train": {"class": picture}})

    assert record("red") == record("red")
    assert record("red").splitlines()[:-1] == record("blue").splitlines()[:-1]
    assert record("red") != record("blue")
    assert "train: 1 classes, 2 images; a class has 2 to 2, median 2" in record("red")
    assert "one  unknown  GPL-2, MIT" in record("red")
