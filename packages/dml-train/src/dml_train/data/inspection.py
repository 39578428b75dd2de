"""What a user's images are like, before they train: counts, sizes, broken files, duplicates.

Shapes: `N` readable images, `U` of them with different pixels, `H` bits of a perceptual hash.
"""

from __future__ import annotations

import csv
import hashlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from dml_core import DmlError, RangeEvaluator, Registry
from dml_core import registry as installed
from dml_train.data.bad_images import read_all
from dml_train.data.csv_table import read_csv_table
from dml_train.data.decoding import read_image
from dml_train.data.image_folder import read_image_folder
from dml_train.data.parts import Parts
from dml_train.data.preparation import Preparation
from dml_train.data.prepare import REDUCED_SIDE
from dml_train.extras import extra
from dml_train.files import write_atomically

NEAR = 4  # differing bits of two hashes, of 64; most pairs of unrelated photographs differ in more than 20
_MOST_PAIRS = 100_000
_TIMED = 32  # images


class NearDuplicate(NamedTuple):
    """Two similar images."""

    first: Path
    second: Path
    bits: int  # how many of their 64-bit hashes differ


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found about a folder or table of images.

    Args:
        source: the folder or table.
        options: of the recipe's ``[dataset]`` table that name it.
        parts: the files of each part and class, broken ones included.
        is_split: whether the source itself says which images train.
        class_of: the class of each file.
        sizes: width and height in pixels of each readable file.
        bad: the reason of each broken file.
        duplicates: groups of files with identical pixels.
        near: pairs of similar images, most similar first; identical files are represented by their first.
        without_near: why near-duplicates weren't searched; empty if they were.
        preparation: the steps to which reported times and sizes refer.
        load_seconds: the time to decode and resize an image by them.
    """

    source: Path
    options: Mapping[str, str]
    parts: Parts
    is_split: bool
    class_of: Mapping[Path, str]
    sizes: Mapping[Path, tuple[int, int]]
    bad: Mapping[Path, str]
    duplicates: Sequence[Sequence[Path]]
    near: Sequence[NearDuplicate]
    without_near: str
    preparation: Preparation
    load_seconds: float

    def across_classes(self, files: Sequence[Path]) -> bool:
        """Whether these files are of more than one class."""
        return len({self.class_of[file] for file in files}) > 1


class _Look(NamedTuple):
    """A decoded image: its width and height, a digest of its pixels, and the bits of its hash, if any."""

    size: tuple[int, int]
    digest: bytes
    bits: npt.NDArray[np.bool_] | None


def inspect_images(
    source: str | Path,
    *,
    root: str | Path | None = None,
    registry: Registry | None = None,
    preparation: Preparation | None = None,
) -> Inspection:
    """Decode all images of a folder or table, and find what would disturb a training.

    Args:
        source: a folder ``ROOT/CLASS/IMAGE`` or a CSV file, as the data sets ``image-folder`` and ``csv`` read them.
        root: the folder where a table's paths start; default: the folder that holds the table.
        registry: provides the evaluator ``"exact"``, which searches near-duplicates; default: all installed ones.
        preparation: the steps to which reported times and sizes refer; default: those of a recipe without options.

    Raises:
        DmlError: if the data set ``image-folder`` or ``csv`` rejects the source.
    """
    source, preparation = Path(source).expanduser(), preparation or Preparation()
    options, parts, is_split = _read_folder(source, root) if source.is_dir() else _read_table(source, root)
    class_of = {
        file: name
        for classes in parts.by_name().values()
        for name, files in classes.items()
        for file in files
    }
    without_near, make_hash = "", None
    try:
        with extra("duplicates", "the search for near-duplicates"):
            from imagehash import phash
        make_hash = phash
    except DmlError as error:
        without_near = str(error)
    looks: dict[Path, _Look] = {}
    bad: dict[Path, str] = {}
    look = partial(_look, make_hash=make_hash, preparation=preparation)
    for file, seen in read_all(sorted(class_of), look, "decode images"):
        if isinstance(seen, _Look):
            looks[file] = seen
        else:
            bad[file] = str(seen)
    by_digest: dict[bytes, list[Path]] = {}
    for file, seen in looks.items():
        by_digest.setdefault(seen.digest, []).append(file)
    near: list[NearDuplicate] = []
    if not without_near:
        try:
            first = [files[0] for files in by_digest.values()]
            near = _find_near(first, [looks[file].bits for file in first], registry or installed())
        except DmlError as error:
            without_near = str(error)
    return Inspection(
        source=source,
        options=options,
        parts=parts,
        is_split=is_split,
        class_of=class_of,
        sizes={file: seen.size for file, seen in looks.items()},
        bad=bad,
        duplicates=[files for files in by_digest.values() if len(files) > 1],
        near=near,
        without_near=without_near,
        preparation=preparation,
        load_seconds=_time_loading([*looks], preparation),
    )


def write_findings(found: Inspection, path: Path) -> None:
    """Write broken files and all duplicates as a CSV file in UTF-8 with a line of column names."""
    class_of = found.class_of
    pairs = [
        ("duplicate", files[0], other, "identical pixels")
        for files in found.duplicates
        for other in files[1:]
    ]
    pairs += [("near-duplicate", pair.first, pair.second, f"{pair.bits} of 64 bits") for pair in found.near]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("finding", "image", "class", "other_image", "other_class", "detail"))
    writer.writerows(("broken", file, class_of[file], "", "", reason) for file, reason in found.bad.items())
    writer.writerows((kind, a, class_of[a], b, class_of[b], detail) for kind, a, b, detail in pairs)
    # A path may hold bytes that aren't UTF-8; the file has the same ones.
    write_atomically(path, lambda file: file.write(text.getvalue().encode(errors="surrogateescape")))


def _read_folder(folder: Path, root: str | Path | None) -> tuple[dict[str, str], Parts, bool]:
    """Return the data set's options, its parts, and whether the folder itself divides them."""
    if root is not None:
        raise DmlError(f"root is the folder of a table's images, and {folder} is a folder; omit root")
    parts = read_image_folder(str(folder))
    # Of ROOT/PART/CLASS/IMAGE, not of ROOT/CLASS/IMAGE.
    is_split = not all((folder / name).is_dir() for classes in parts.by_name().values() for name in classes)
    return {"name": "image-folder", "root": str(folder)}, parts, is_split


def _read_table(table: Path, root: str | Path | None) -> tuple[dict[str, str], Parts, bool]:
    """Return the data set's options, its parts, and whether the table has the column ``split``."""
    folder = table.parent if root is None else Path(root)
    name = table.name if table.parent == folder else str(table.absolute())
    parts = read_csv_table(str(folder), name)
    with table.open(encoding="utf-8-sig", newline="") as lines:
        is_split = "split" in (csv.DictReader(lines).fieldnames or [])
    return {"name": "csv", "root": str(folder), "table": name}, parts, is_split


def _look(
    file: Path, make_hash: Callable[[Image.Image], Any] | None, preparation: Preparation
) -> _Look | str:
    """Decode an image, or return why that fails."""
    try:
        image = read_image(file)
    except DmlError:
        try:  # a JPEG may have too many pixels, unless it is reduced, as training does
            image = read_image(file, min_side=REDUCED_SIDE * preparation.resize)
        except DmlError as error:
            return str(error)
    digest = hashlib.sha256(f"{image.size}".encode() + image.tobytes()).digest()
    return _Look(image.size, digest, None if make_hash is None else make_hash(image).hash.ravel())


def _find_near(files: Sequence[Path], bits: Sequence[Any], registry: Registry) -> list[NearDuplicate]:
    """Find all pairs of hashes with at most `NEAR` differing bits, exactly.

    Raises:
        DmlError: if the evaluator is missing, or there are more than 100,000 pairs.
    """
    if len(files) < 2:
        return []
    evaluator = registry.build("evaluators", {"name": "exact"}, {"seed": 0})
    if not isinstance(evaluator, RangeEvaluator):
        raise DmlError("the evaluator 'exact' doesn't find all items above a similarity; install dml-eval-rs")
    rows_UH = np.where(np.stack(bits), np.float32(1), np.float32(-1))  # cosine = 1 - 2 * differing bits / H
    length = rows_UH.shape[1]
    try:
        offsets, indices, cosines = evaluator.within(
            rows_UH, rows_UH, 1 - 2 * NEAR / length, max_results=len(files) + 2 * _MOST_PAIRS
        )
    except ValueError as error:
        raise DmlError(
            f"more than {_MOST_PAIRS:,} pairs of images look alike: they are too plain for a perceptual hash"
        ) from error
    rows = np.repeat(np.arange(len(files)), np.diff(offsets))
    once = rows < indices
    differing = np.rint((1 - cosines) * length / 2).astype(int)
    pairs = zip(rows[once].tolist(), indices[once].tolist(), differing[once].tolist(), strict=True)
    return sorted(
        (NearDuplicate(files[a], files[b], count) for a, b, count in pairs),
        key=lambda pair: (pair.bits, pair.first, pair.second),
    )


def _time_loading(files: Sequence[Path], preparation: Preparation) -> float:
    """Time how long an image takes to load on one core, by the median of some images."""
    seconds = []
    for file in files[:: max(1, len(files) // _TIMED)]:
        start = time.perf_counter()
        preparation.load_resized(file)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)) if seconds else 0.0
