"""Application icons from different themes: a class is an application, with the themes' drawings as
images.

Themes use links or copies to give a drawing multiple names; names.py decides which names mean the
same application. Names that begin with equal words (``libreoffice-writer``, ``libreoffice-calc``)
are on the same side of the split.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import resvg_py
from names import group_names
from picture_set import Pictures, pixel_hash, square_on_white
from PIL import Image

SIDE = 96  # pixels
# Each theme's folder, relative to usr/share/icons, that contains the largest icons of applications.
THEMES = {
    "papirus": "Papirus/64x64/apps",
    "numix-circle": "Numix-Circle/48/apps",
    "obsidian": "Obsidian/apps/96",
    "moka": "Moka/256x256/apps",
    "bloom": "bloom/apps/96",
    "bloom-classic": "bloom-classic/apps/96",
    "paper": "Paper/512x512/apps",
    "faenza": "Faenza/apps/96",
    "elementary-xfce": "elementary-xfce/apps/128",
    "breeze": "breeze/apps/48",
    "oxygen": "oxygen/base/128x128/apps",
    "nuovo": "Nuovo/scalable/apps",
    "gartoon": "gartoon/scalable/apps",
    "yasis": "yasis/scalable/apps",
    "mate": "mate/scalable/apps",
    "tango": "Tango/scalable/apps",
    "gnome": "gnome/256x256/apps",
}
PACKAGES = (
    "papirus-icon-theme", "numix-icon-theme-circle", "obsidian-icon-theme", "moka-icon-theme",
    "deepin-icon-theme",
    "paper-icon-theme", "faenza-icon-theme", "elementary-xfce-icon-theme", "breeze-icon-theme",
    "oxygen-icon-theme",
    "gnome-icon-theme-nuovo", "gnome-icon-theme-gartoon", "gnome-icon-theme-yasis",
    "mate-icon-theme",
    "tango-icon-theme", "gnome-icon-theme",
)  # fmt: skip
TOOLS = f"resvg {resvg_py.__resvg_version__} (resvg-py {resvg_py.__version__}), without fonts"


def read_icons(root: Path) -> dict[str, Pictures]:
    """Render the icons of classes with at least 2 different drawings, by split."""
    files, drawings = _find_drawings(root / "usr/share/icons")
    classes: dict[str, dict[str, Image.Image]] = {}
    for names, themes in group_names(drawings):
        label = re.sub(r"[^\w.+-]", "_", min(names, key=lambda name: (len(name), name)))
        drawn = {theme: _render(files[drawing]) for theme, drawing in sorted(themes.items())}
        classes[label] = {theme: image for theme, image in drawn.items() if image is not None}
    splits: dict[str, dict[str, Mapping[str, Image.Image]]] = {"train": {}, "test": {}}
    for label, pictures in sorted(_drop_copies(classes).items()):
        first_word = re.split(r"[^a-z0-9]", label.lower())[0]
        side = hashlib.sha256(first_word.encode()).digest()[0] % 2
        splits["test" if side else "train"][label] = pictures
    return dict(splits)


def _find_drawings(icons: Path) -> tuple[dict[str, Path], dict[str, dict[str, str]]]:
    """Return files by the drawing's hash, and the hashes by name and theme; links are followed."""
    files: dict[str, Path] = {}
    drawings: dict[str, dict[str, str]] = defaultdict(dict)
    for theme, folder in THEMES.items():
        for file in sorted((icons / folder).iterdir()):
            if file.suffix in (".svg", ".png") and file.is_file():
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                files.setdefault(digest, file)
                drawings[file.stem][theme] = digest
    return files, drawings


def _render(file: Path) -> Image.Image | None:
    """Draw an icon, SIDE × SIDE, on white; return None if resvg can't read the file."""
    if file.suffix == ".svg":
        try:
            png = resvg_py.svg_to_bytes(
                svg_path=str(file.resolve()), width=SIDE, height=SIDE, skip_system_fonts=True
            )
        except BaseException as error:  # the class of resvg's panics can't be imported
            if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
                raise
            print(f"skipped {file}: {error}", file=sys.stderr)
            return None
        image = Image.open(io.BytesIO(bytes(png)))
    else:
        image = Image.open(file)
    return square_on_white(image, SIDE)


def _drop_copies(
    classes: Mapping[str, Mapping[str, Image.Image]],
) -> dict[str, dict[str, Image.Image]]:
    """Drop copies in a class, pictures shared by multiple classes, pictures in a single colour,
    then small classes.
    """
    labels_of: dict[str, set[str]] = defaultdict(set)
    hashes = {
        label: {name: pixel_hash(image) for name, image in of.items()}
        for label, of in classes.items()
    }
    for label, of_class in hashes.items():
        for digest in of_class.values():
            labels_of[digest].add(label)
    kept = {}
    for label, of_class in hashes.items():
        seen: set[str] = set()
        chosen = {}
        for name, digest in of_class.items():
            image = classes[label][name]
            flat = all(low == high for low, high in image.getextrema())  # type: ignore[misc]
            if len(labels_of[digest]) == 1 and digest not in seen and not flat:
                seen.add(digest)
                chosen[name] = image
        if len(chosen) > 1:
            kept[label] = chosen
    return kept
