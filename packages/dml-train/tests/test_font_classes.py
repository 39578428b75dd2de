"""Classes drawn with a user's fonts: how classes, items and missing glyphs are found."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools.ttLib import TTFont
from fontTools.ttLib.ttCollection import TTCollection
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core import DmlError
from dml_core.testing import DatasetContract
from dml_train.data.fonts import (
    NO_CHARACTER,
    PLACEHOLDER_USES,
    Face,
    draw_classes,
    open_faces,
    select_characters,
)
from dml_train.data.glyphs import Glyphs

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SERIFS = [str(FONTS / "DejaVuSerif*.ttf")]
LATIN = {"characters": ["U+0041-U+005A", "U+0061-U+007A"], "min_faces": 3}


class PaintedFace:
    """A font's face with drawings that are given as numbers by code point."""

    def __init__(self, drawings: dict[int, int], missing: int | None = None) -> None:
        self.name, self.characters = "painted", frozenset(drawings)
        self._drawings, self._missing = drawings, missing

    def draw(self, character):
        number = self._missing if character == NO_CHARACTER else self._drawings[ord(character)]
        return None if number is None else np.full((2, 2), number, dtype=np.uint8)


def draw_classes_by_definition(faces: list[dict[int, int]], least: int, counted: int):
    """Compare all pairs to list `draw_classes`'s classes as (first code point, [(face, drawing),
    …]).
    """
    code_points = sorted({c for face in faces for c in face})
    linked = {c: {c} for c in code_points}
    for face in faces:
        for one in face:
            linked[one] |= {other for other in face if face[one] == face[other]}
    classes, seen = [], set()
    for start in code_points:
        reached, fresh = {start}, {start}
        while fresh:
            fresh = {other for one in fresh for other in linked[one]} - reached
            reached |= fresh
        if start in seen:
            continue
        seen |= reached
        items = []
        for position, face in enumerate(faces):
            own = sorted(reached & face.keys())
            if own and face[own[0]] not in [drawing for _, drawing in items]:
                items.append((position, face[own[0]]))
        if sum(position < counted for position, _ in items) >= least:
            classes.append((start, items))
    return classes


FACES = st.lists(
    st.dictionaries(st.integers(65, 80), st.integers(1, 30), max_size=12), min_size=1, max_size=5
)


@settings(deadline=None)
@given(faces=FACES, least=st.integers(1, 3), data=st.data())
def test_classes_are_those_of_the_definition(faces, least, data):
    counted = data.draw(st.integers(1, len(faces)))
    expected = draw_classes_by_definition(faces, least, counted)
    painted = [PaintedFace(face) for face in faces]
    if len(expected) < 2:
        with pytest.raises(
            DmlError, match=f"{len(expected)} classes have {least} different drawings"
        ):
            draw_classes(painted, lambda _: True, least, counted)
        return
    drawing = draw_classes(painted, lambda _: True, least, counted)
    found = [
        (
            int(name[2:6], 16),
            list(zip(drawing.faces[of].tolist(), drawing.images[of, 0, 0].tolist(), strict=True)),
        )
        for label, name in enumerate(drawing.class_names)
        if (of := drawing.labels == label) is not None
    ]
    assert found == expected


def test_signs_for_missing_glyphs_are_no_drawings():
    """A drawing shared by `PLACEHOLDER_USES` characters is a sign for missing glyphs, even if the
    face lists them.
    """
    own = {65: 1, 66: 2, 67: 3}
    shared = {68 + n: 9 for n in range(PLACEHOLDER_USES)}
    few = {200 + n: 8 for n in range(PLACEHOLDER_USES - 1)}
    drawing = draw_classes([PaintedFace(own | shared | few, missing=3)], lambda _: True, 1)
    assert [int(name[2:6], 16) for name in drawing.class_names] == [65, 66, 200]


@pytest.mark.parametrize(
    ("characters", "inside", "outside"),
    [
        ("latin", "aZé", "αжⅣ1一"),
        ("han", "一龍𠀀", "あaー々"),
        (["latin", "U+3041-U+3096"], "zぁん", "ア一"),
        ("U+0041", "A", "B"),
        ("all", "aα一1€", "\n\ue000\u200b"),
    ],
)
def test_a_character_set_has_the_characters_of_its_name(characters, inside, outside):
    belongs = select_characters(characters)
    assert all(belongs(ord(character)) for character in inside)
    assert not any(belongs(ord(character)) for character in outside)
    for unknown in ("greek", "U+9FFF-U+4E00", "4E00-9FFF", [], ["han", ""]):
        with pytest.raises(ValueError, match=r"^characters (has|is empty).*expected"):
            select_characters(unknown)


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Path:
    """Write a collection of DejaVu Serif and DejaVu Sans."""
    file = tmp_path_factory.mktemp("fonts") / "both.ttc"
    both = TTCollection()
    both.fonts = [TTFont(FONTS / name) for name in ("DejaVuSerif.ttf", "DejaVuSans.ttf")]
    both.save(file)
    return file


def test_a_collection_has_its_faces_by_number(collection):
    assert [face.name for face in open_faces([str(collection)], 24)] == ["both#0", "both#1"]
    [second] = open_faces([f"{collection}#1", f"{collection}#1"], 24)
    assert second.name == "both#1"
    np.testing.assert_array_equal(second.draw("g"), Face(FONTS / "DejaVuSans.ttf", 24).draw("g"))
    assert second.characters == Face(FONTS / "DejaVuSans.ttf", 24).characters


def test_fonts_that_cant_be_opened_are_named(collection, tmp_path):
    (tmp_path / "text.ttf").write_text("no font")
    with pytest.raises(DmlError, match=r"fonts: no file matches '.*none\*\.ttf'"):
        open_faces([str(tmp_path / "none*.ttf")], 24)
    with pytest.raises(DmlError, match=r"text\.ttf can't be read as a font"):
        open_faces([str(tmp_path / "*.ttf")], 24)
    with pytest.raises(DmlError, match=r"doesn't contain face '2': its faces are 0 to 1"):
        open_faces([f"{collection}#2"], 24)
    with pytest.raises(DmlError, match=r"doesn't contain face '0': it is not a collection"):
        open_faces([str(FONTS / "DejaVuSans.ttf#0")], 24)
    (tmp_path / "other").mkdir()
    for name in ("a.ttf", "other/a.ttf"):
        (tmp_path / name).write_bytes((FONTS / "DejaVuSans.ttf").read_bytes())
    with pytest.raises(DmlError, match="more than one file is named a; give the path of only one"):
        open_faces([str(tmp_path / "**" / "a.ttf")], 24)


class TestGlyphsOfUserFonts(DatasetContract):
    def make_dataset(self):
        return Glyphs(fonts=SERIFS, size=24, **LATIN)


class TestGlyphsWithQueryFonts(DatasetContract):
    def make_dataset(self):
        return Glyphs(fonts=SERIFS, query_fonts=[str(FONTS / "DejaVuSans*.ttf")], size=24, **LATIN)


def test_user_fonts_draw_each_letter_and_each_drawing_once():
    data = Glyphs(fonts=SERIFS, size=24, **LATIN)
    names = sorted([*data.train.class_names, *data.test.class_names])
    assert len(names) == 52
    assert names[0] == "U+0041 LATIN CAPITAL LETTER A"
    for split in (data.train, data.test):
        assert np.bincount(split.labels).min() >= 3
        assert split.load(np.arange(4)).shape == (4, 1, 24, 24)
        pictures = {
            (label, image.numpy().tobytes())
            for label, image in zip(split.labels, split.load(np.arange(len(split))), strict=True)
        }
        assert len(pictures) == len(split)
    assert Glyphs.image_reader(size=24).input_shape == (1, 24, 24)


def test_query_fonts_draw_queries_alone():
    plain = Glyphs(fonts=SERIFS, size=24, **LATIN)
    data = Glyphs(fonts=SERIFS, query_fonts=[str(FONTS / "DejaVuSansMono.ttf")], size=24, **LATIN)
    assert data.gallery is not None
    np.testing.assert_array_equal(data.train.labels, plain.train.labels)
    np.testing.assert_array_equal(data.gallery.labels, plain.test.labels)
    assert data.test.class_names == data.gallery.class_names == plain.test.class_names
    mono = Face(FONTS / "DejaVuSansMono.ttf", 24)
    for item, name in enumerate(data.test.class_names):
        np.testing.assert_array_equal(
            255 - data.test.picture(item)[..., 0], mono.draw(chr(int(name[2:6], 16)))
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"characters": "latin"}, "query_fonts, characters and min_faces need fonts"),
        ({"fonts": SERIFS[0]}, "fonts and query_fonts are lists of patterns"),
        ({"fonts": SERIFS, "size": 4}, "size is 4; expected 8 to 512"),
        ({"fonts": SERIFS, "min_faces": 1}, "min_faces is 1; expected at least 2"),
        ({"fonts": SERIFS, "query_fonts": SERIFS, **LATIN}, "is in both fonts and query_fonts"),
        ({"fonts": SERIFS, "characters": "han"}, "0 classes have 6 different drawings"),
        ({"fonts": []}, "fonts is empty"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises((ValueError, DmlError), match=message):
        Glyphs(**options)
