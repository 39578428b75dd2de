"""Write a folder of pictures from Debian packages; describe and hash it in a record that others can
check.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

Pictures = Mapping[str, Mapping[str, Image.Image]]  # RGB images by class, then by name


class MissingPackages(Exception):
    """Error for packages whose files are not found below the given root."""


def check_packages(root: Path, packages: Sequence[str]) -> None:
    """Check that the root contains the packages' documentation.

    Raises:
        MissingPackages: if packages are missing; the message says how to get the packages.
    """
    missing = [name for name in packages if not (root / "usr/share/doc" / name).exists()]
    if missing:
        raise MissingPackages(
            f"{root} lacks the files of {', '.join(missing)}. Install these Debian packages, or "
            "only unpack them:\n"
            f"  apt-get download {' '.join(missing)}\n"
            f'  for file in *.deb; do dpkg-deb -x "$file" {root}; done'
        )


def square_on_white(image: Image.Image, side: int | None = None) -> Image.Image:
    """Pad a picture to a square, scale it to `side` pixels if given; compose it on white."""
    image = image.convert("RGBA")
    square = Image.new("RGBA", (max(image.size),) * 2)
    square.paste(image, ((square.width - image.width) // 2, (square.height - image.height) // 2))
    if side is not None:
        # Premultiply, so that the colour of transparent pixels doesn't leak into edges.
        square = (
            square.convert("RGBa").resize((side, side), Image.Resampling.LANCZOS).convert("RGBA")
        )
    return Image.alpha_composite(Image.new("RGBA", square.size, "white"), square).convert("RGB")


def components(names: Iterable[str], links: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the connected components of names, sorted: names in a list of `links` are
    connected.
    """
    parent = {name: name for name in names}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for linked in links:
        first, *others = [name for name in linked if name in parent] or [""]
        for other in others:
            parent[find(other)] = find(first)
    found = defaultdict(list)
    for name in sorted(parent):
        found[find(name)].append(name)
    return [found[key] for key in sorted(found)]


def pixel_hash(image: Image.Image) -> str:
    """Hash a picture's size and pixels, so that the file's compression doesn't matter."""
    return hashlib.sha256(repr((image.mode, image.size)).encode() + image.tobytes()).hexdigest()


def write_pictures(out: Path, splits: Mapping[str, Pictures]) -> None:
    """Write ``OUT/SPLIT/CLASS/NAME.png``.

    Raises:
        FileExistsError: if the folder exists, since older pictures would mix with the new ones.
    """
    out.mkdir(parents=True)
    for split, classes in splits.items():
        for label, pictures in classes.items():
            folder = out / split / label
            folder.mkdir(parents=True)
            for name, image in pictures.items():
                image.save(folder / f"{name}.png")


def describe(
    title: str, root: Path, packages: Sequence[str], tools: str, splits: Mapping[str, Pictures]
) -> str:
    """Describe a set by counts, sources with versions and licences, and a hash over all pixels."""
    lines = [title, ""]
    listed: list[str] = []
    for split, classes in splits.items():
        sizes = sorted(len(pictures) for pictures in classes.values())
        lines.append(
            f"{split}: {len(classes)} classes, {sum(sizes)} images; "
            f"a class has {sizes[0]} to {sizes[-1]}, median {np.median(sizes):g}"
        )
        listed += [
            f"{split}/{label}/{name} {pixel_hash(image)}"
            for label, pictures in classes.items()
            for name, image in pictures.items()
        ]
    lines += [
        f"tools: {tools}",
        "",
        "package, version of its source, licences that its copyright file names",
    ]
    for package in packages:
        lines.append(f"  {package}  {_version(root, package)}  {_licences(root, package)}")
    digest = hashlib.sha256("\n".join(sorted(listed)).encode()).hexdigest()
    return "\n".join([*lines, "", f"sha256 of all paths and pixels: {digest}"]) + "\n"


def _version(root: Path, package: str) -> str:
    """Read a package's version from the first line of the changelog."""
    folder = root / "usr/share/doc" / package
    for name in ("changelog.Debian.gz", "changelog.gz"):
        if (file := folder / name).exists():
            first = gzip.decompress(file.read_bytes()).split(b"\n", 1)[0].decode()
            return first.partition("(")[2].partition(")")[0]
    return "unknown"


def _licences(root: Path, package: str) -> str:
    """List the licences in a package's copyright file, sorted by frequency."""
    text = (root / "usr/share/doc" / package / "copyright").read_text(errors="replace")
    named = re.findall(r"^License: *(\S.*)$", text, re.MULTILINE)
    if not named:
        named = re.findall(r"/common-licenses/([\w.+-]*\w)", text) or re.findall(
            r"CC-BY[-\w.]*|Creative Commons", text
        )
    return ", ".join(name for name, _ in Counter(named).most_common(6)) or "see its copyright file"
