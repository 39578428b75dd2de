"""Sprites of Battle for Wesnoth's units: a class is a unit type, with poses and animation frames as
images.

- **Images of a type**: the sprite, and files in the folder with names that continue the sprite's
  name (``archer``: ``archer-bow-attack1``, ``archer+female``). If multiple names are continued, the
  longest is used. Types that share a sprite are a single class, and so are female and male
  variants, although they are drawn differently.
- **Frames** are excluded if they show less than MIN_VISIBLE of the sprite's area (fading, halos),
  or differ from an earlier frame of the class by less than MIN_DIFFERENCE, as consecutive frames
  do. MOST_IMAGES of the others are used, evenly spaced when sorted by name.
- **Team colours**: sprites contain 19 shades of magenta, which the game replaces by a side's
  colour. The hash of an image's name chooses one of the game's sides, so that the colour doesn't
  reveal the class.
- **Split**: types that advance to one another form a line, and a line is not split. Lines are
  assigned from the longest to the shortest, each to the side with fewer classes.
- A picture is the sprite's canvas, padded to a square, on white; most are 72 × 72.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from picture_set import Pictures, components, square_on_white
from PIL import Image

PACKAGES = ("wesnoth-1.16-data",)
TOOLS = ""
MIN_VISIBLE = 0.6
MIN_DIFFERENCE = (
    12.0  # mean absolute difference of the levels, 0 to 255, over pixels that either image shows
)
MOST_IMAGES = 20
FEWEST_IMAGES = 4

Bytes = npt.NDArray[np.uint8]


def read_units(root: Path) -> dict[str, Pictures]:
    """Draw the types that have FEWEST_IMAGES different images or more, by split."""
    core = next((root / "usr/share/games/wesnoth").glob("*/data/core"))
    types = read_types(core)
    images = core / "images"
    stem_of = {
        name: _stem(sprite) for name, (sprite, _) in types.items() if (images / sprite).is_file()
    }
    name_of: dict[str, str] = {}  # the first type of a sprite
    for name, stem in stem_of.items():
        name_of.setdefault(stem, name)
    lines = join_lines(
        {name_of[stem]: [name_of[stem_of[n]] for n in types[name][1] if n in stem_of]}
        for name, stem in stem_of.items()
    )
    files: dict[str, list[Path]] = defaultdict(list)
    for file in sorted((images / "units").rglob("*.png")):
        stem = owner(str(file.relative_to(images).with_suffix("")), name_of)
        if stem is not None:
            files[stem].append(file)
    recolour = Recolouring((core / "team-colors.cfg").read_text())
    classes = {}
    for stem, found in files.items():
        chosen = _choose_frames(images / types[name_of[stem]][0], found)
        if len(chosen) >= FEWEST_IMAGES:
            pictures = {}
            for file in chosen:
                key = str(file.relative_to(images / "units").with_suffix(""))
                pictures[key.replace("/", "_")] = square_on_white(
                    Image.fromarray(recolour(np.array(_load(file)), key))
                )
            classes[name_of[stem]] = pictures
    return split_by_line(classes, lines)


def read_types(core: Path) -> dict[str, tuple[str, list[str]]]:
    """Read the sprite of each unit type, relative to the folder of images, and the types that it
    advances to.
    """
    types = {}
    for file in sorted((core / "units").rglob("*.cfg")):
        text = file.read_text(encoding="utf-8")
        macros = dict(re.findall(r"#define (\w+)\n[ \t]*([^\s#]*)\s*#enddef", text))
        for block in re.findall(r"\[unit_type\](.*?)\[/unit_type\]", text, re.DOTALL):
            name, sprite = _value(block, "id"), _value(block, "image")
            if name and sprite:
                advances = [each.strip() for each in _value(block, "advances_to").split(",")]
                types[name] = (
                    _expand(sprite, macros),
                    [each for each in advances if each not in ("", "null")],
                )
    return types


def _expand(sprite: str, macros: Mapping[str, str]) -> str:
    """Replace macros by values; remove the game's image functions."""
    path = re.sub(r"\{(\w+)\}", lambda match: macros.get(match[1], ""), sprite).replace("//", "/")
    return path.partition("~")[0]


def _value(block: str, key: str) -> str:
    match = re.search(rf'^\s*{key}\s*=\s*"?([^"\n#]*)', block, re.MULTILINE)
    return match[1].strip() if match else ""


def _stem(sprite: str) -> str:
    """Remove the suffix, direction and frame number, since some types' sprites are frames
    (bloodbat-se-3).
    """
    return re.sub(r"(-(n|s|ne|se|nw|sw))?(-?\d+)?$", "", sprite.removesuffix(".png"))


def owner(path: str, stems: Iterable[str]) -> str | None:
    """Find the longest stem that a path continues by a dash, a plus or a number."""
    fitting = [
        stem for stem in stems if path.startswith(stem) and re.match(r"$|[-+\d]", path[len(stem) :])
    ]
    return max(fitting, key=len, default=None)


def join_lines(advances: Iterable[Mapping[str, list[str]]]) -> dict[str, str]:
    """Join types that advance to one another, directly or not; return each type's line, named by
    the first type.
    """
    links = [[name, *others] for step in advances for name, others in step.items()]
    lines = components([name for linked in links for name in linked], links)
    return {name: line[0] for line in lines for name in line}


def split_by_line(
    classes: Mapping[str, Mapping[str, Image.Image]], lines: Mapping[str, str]
) -> dict[str, Pictures]:
    """Split classes so that lines are not split, but both sides are nearly equal in the number of
    classes.
    """
    members = defaultdict(list)
    for name in sorted(classes):
        members[lines[name]].append(name)
    splits: dict[str, dict[str, Mapping[str, Image.Image]]] = {"train": {}, "test": {}}
    for names in sorted(members.values(), key=lambda names: (-len(names), names)):
        side = min(splits, key=lambda split: len(splits[split]))
        for name in names:
            splits[side][name.replace(" ", "_")] = classes[name]
    return {split: dict(sorted(found.items())) for split, found in splits.items()}


class Recolouring:
    """Replacement of magenta by a side's colour, as in the game.

    The brightness of a shade determines the new colour. Up to the brightness of the palette's first
    shade, it is a mix of the side's darkest and middle colours; above, it is a mix of the middle
    and lightest colours.

    Args:
        text: the content of the game's ``team-colors.cfg``.
    """

    def __init__(self, text: str) -> None:
        palette = re.search(r"^\s*magenta=([0-9A-Fa-f,]+)", text, re.MULTILINE)
        assert palette is not None
        self.shades = _colours(palette[1])
        ranges = re.findall(r"\[color_range\](.*?)\[/color_range\]", text, re.DOTALL)
        sides = {
            _value(block, "id"): _colours(_value(block, "rgb"))
            for block in ranges
            if "default=yes" in block
        }
        self.sides = [sides[name] for name in sorted(sides)]

    def __call__(self, rgba: Bytes, key: str) -> Bytes:
        """Recolour an image, (H, W, 4), with a side's colour, chosen by the hash of `key`."""
        middle, lightest, darkest, _ = self.sides[
            hashlib.sha256(key.encode()).digest()[0] % len(self.sides)
        ]
        reference = self.shades[0].mean()
        result = rgba.copy()
        for shade in self.shades:
            brightness = shade.mean()
            if brightness <= reference:
                share, other = brightness / reference, darkest
            else:
                share, other = (255.0 - brightness) / (255.0 - reference), lightest
            colour = np.round(share * middle + (1.0 - share) * other).clip(0, 255)
            result[(rgba[..., :3] == shade).all(-1), :3] = colour
        return result


def _colours(text: str) -> list[npt.NDArray[np.float64]]:
    return [
        np.array([int(code[i : i + 2], 16) for i in (0, 2, 4)], dtype=float)
        for code in text.split(",")
    ]


def _load(file: Path) -> Image.Image:
    return Image.open(file).convert("RGBA")


def _choose_frames(sprite: Path, files: list[Path]) -> list[Path]:
    """Choose frames that show enough and are different, beginning with the sprite."""
    visible = (np.array(_load(sprite))[..., 3] > 127).sum()
    kept: list[tuple[Path, Bytes]] = []
    for file in [sprite, *(file for file in files if file != sprite)]:
        rgba = np.array(_load(file))
        rgba[rgba[..., 3] <= 127] = 255, 255, 255, 0
        if (rgba[..., 3] > 0).sum() >= MIN_VISIBLE * visible and all(
            _difference(rgba, other) >= MIN_DIFFERENCE for _, other in kept
        ):
            kept.append((file, rgba))
    places = np.linspace(0, len(kept) - 1, min(MOST_IMAGES, len(kept))).round().astype(int)
    return [kept[place][0] for place in places]


def _difference(one: Bytes, other: Bytes) -> float:
    """Return the mean absolute difference over pixels that either image shows, or 255 if the sizes
    differ.
    """
    if one.shape != other.shape:
        return 255.0
    shown = (one[..., 3] > 0) | (other[..., 3] > 0)
    return (
        float(np.abs(one[shown, :3].astype(float) - other[shown, :3]).mean())
        if shown.any()
        else 0.0
    )
