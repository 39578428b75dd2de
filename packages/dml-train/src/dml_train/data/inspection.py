"""Inspect a user's images before training: counts, sizes, broken files, duplicates, and how to
begin.

Shapes: `N` readable images, `U` images with different pixels, `H` bits of a perceptual hash.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from dml_train.data.decoding import SUFFIXES, read_image
from dml_train.data.image_folder import read_image_folder
from dml_train.data.image_table import read_image_table
from dml_train.data.packed import estimate_size
from dml_train.data.parts import Classes, Parts, count_images, split_classes
from dml_train.data.preparation import Preparation
from dml_train.data.prepare import Size, both_sides
from dml_train.data.stored import TABLES, Item, name_of, sort_images
from dml_train.extras import extra
from dml_train.files import write_csv

# Hashes of near-duplicates differ in at most this many of 64 bits, unrelated photographs usually in
# over 20.
NEAR = 4
_MOST_PAIRS = 100_000
_TIMED = 32  # images to load when timing
_MOST_LISTED = 10  # number of findings to list for each kind
_MOST_NAMED = 5  # number of classes to name in a line
_PER_CLASS = 4  # images_per_class in recipes that use the sampler "class-balanced"
_BAR = 40  # length of the longest bar in characters
# Suggest testing on a fifth of the classes if the fifth has at least this many classes and images;
# otherwise on half.
_MEASURED_CLASSES, _MEASURED_IMAGES = 50, 1_000
_HALF = 0.5


class NearDuplicate(NamedTuple):
    """A pair of similar images."""

    first: Item
    second: Item
    bits: int  # number of differing bits between the 64-bit hashes


@dataclass(frozen=True, slots=True)
class Inspection:
    """The findings about a folder or table of images."""

    source: Path  # the folder or table
    options: Mapping[str, str]  # options in the recipe's ``[dataset]`` table that name the source
    parts: Parts  # including broken files
    class_of: Mapping[Item, str]
    sizes: Mapping[Item, tuple[int, int]]  # width and height in pixels of readable images
    bad: Mapping[Item, str]  # broken images, with reasons
    duplicates: Sequence[Sequence[Item]]  # groups of images with identical pixels
    near: Sequence[
        NearDuplicate
    ]  # most similar first; only the first of multiple identical files is listed
    without_near: str  # the reason if near-duplicates weren't searched; otherwise empty
    preparation: Preparation  # reported times and sizes are for these steps
    load_seconds: float  # time to decode and resize an image in these steps


class _Look(NamedTuple):
    """Width and height of a decoded image, a digest of the pixels, and the bits of the perceptual
    hash, if any.
    """

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
    """Decode all images of a folder or table, and find problems before training.

    Raise a `DmlError` if the data set ``image-folder``, ``csv`` or ``table`` can't read the source.

    Args:
        source: a folder ``ROOT/CLASS/IMAGE``, a CSV file, or what the data set ``table`` reads with
            default options.
        root: the folder that a table's paths are relative to; default: the folder of the table.
        registry: provides the evaluator ``"exact"`` to search near-duplicates; default: all
            installed components.
        preparation: report times and sizes for these steps; default: ``Preparation()``.
    """
    source, preparation = Path(source).expanduser(), preparation or Preparation()
    options, parts = read_source(source, root)
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
    looks: dict[Item, _Look] = {}
    bad: dict[Item, str] = {}
    look = partial(_look, make_hash=make_hash, preparation=preparation)
    for file, seen in read_all(sort_images(class_of), look, "decode images"):
        if isinstance(seen, _Look):
            looks[file] = seen
        else:
            bad[file] = str(seen)
    by_digest: dict[bytes, list[Item]] = {}
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
    """Write broken files and all duplicates to a CSV file in UTF-8, with a header line."""
    class_of = found.class_of
    pairs = [
        ("duplicate", files[0], other, "identical pixels")
        for files in found.duplicates
        for other in files[1:]
    ]
    pairs += [
        ("near-duplicate", pair.first, pair.second, f"{pair.bits} of 64 bits")
        for pair in found.near
    ]
    rows: list[tuple[object, ...]] = [
        ("broken", name_of(file), class_of[file], "", "", reason)
        for file, reason in found.bad.items()
    ]
    rows += [
        (kind, name_of(a), class_of[a], name_of(b), class_of[b], detail)
        for kind, a, b, detail in pairs
    ]
    write_csv(path, ("finding", "image", "class", "other_image", "other_class", "detail"), rows)


def read_source(source: Path, root: str | Path | None) -> tuple[dict[str, str], Parts]:
    """Return the data set's options, and the parts."""
    kinds = {".tar", *TABLES}
    if not (source.is_dir() or source.suffix in kinds):
        folder = source.parent if root is None else Path(root)
        name = source.name if source.parent == folder else str(source.absolute())
        return {"name": "csv", "root": str(folder), "table": name}, read_csv_table(
            str(folder), name
        )
    inside = [source, *source.glob("*"), *source.glob("*/*")]
    if any(file.suffix in kinds for file in inside) and not any(
        file.suffix in SUFFIXES for file in inside
    ):
        folder = Path(root) if root is not None else source if source.is_dir() else source.parent
        options = {"name": "table", "source": str(source), "root": str(folder)}
        return options, read_image_table(str(source), root=str(folder))
    if root is not None:
        raise DmlError(f"root is only for tables, but {source} is a folder of images; omit root")
    return {"name": "image-folder", "root": str(source)}, read_image_folder(str(source))


def _look(
    file: Item, make_hash: Callable[[Image.Image], Any] | None, preparation: Preparation
) -> _Look | str:
    """Decode the image in `file`, or return the reason for a failure."""
    try:
        image = read_image(file)
    except DmlError:
        try:  # a large JPEG may be readable when reduced in size, as in training
            image = read_image(file, min_side=preparation.reduced_side)
        except DmlError as error:
            return str(error)
    digest = hashlib.sha256(f"{image.size}".encode() + image.tobytes()).digest()
    return _Look(image.size, digest, None if make_hash is None else make_hash(image).hash.ravel())


def _find_near(
    files: Sequence[Item], bits: Sequence[Any], registry: Registry
) -> list[NearDuplicate]:
    """Find all pairs of hashes that differ in at most `NEAR` bits; raise a `DmlError` if over
    100,000 pairs do.
    """
    if len(files) < 2:
        return []
    evaluator = registry.build("evaluators", {"name": "exact"}, {"seed": 0})
    if not isinstance(evaluator, RangeEvaluator):
        raise DmlError(
            "the evaluator 'exact' doesn't find all items above a similarity; install dml-eval-rs"
        )
    rows_UH = np.where(
        np.stack(bits), np.float32(1), np.float32(-1)
    )  # cosine = 1 - 2 * differing bits / H
    length = rows_UH.shape[1]
    try:
        offsets, indices, cosines = evaluator.within(
            rows_UH, rows_UH, 1 - 2 * NEAR / length, max_results=len(files) + 2 * _MOST_PAIRS
        )
    except ValueError as error:
        raise DmlError(
            f"more than {_MOST_PAIRS:,} pairs of images look similar: they are too plain for a "
            "perceptual hash"
        ) from error
    rows = np.repeat(np.arange(len(files)), np.diff(offsets))
    once = rows < indices
    differing = np.rint((1 - cosines) * length / 2).astype(int)
    pairs = zip(rows[once].tolist(), indices[once].tolist(), differing[once].tolist(), strict=True)
    return sorted(
        (NearDuplicate(files[a], files[b], count) for a, b, count in pairs),
        key=lambda pair: (pair.bits, pair.first, pair.second),
    )


def _time_loading(files: Sequence[Item], preparation: Preparation) -> float:
    """Measure the median time to load an image on a single core, over some images."""
    seconds = []
    for file in files[:: max(1, len(files) // _TIMED)]:
        start = time.perf_counter()
        preparation.load_resized(file)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)) if seconds else 0.0


def describe_inspection(found: Inspection, batch_size: int) -> Iterator[str]:
    """Describe counts, sizes, findings, and how to begin with the recipe `my-images`, with this
    batch size.
    """
    sizes = Counter(found.class_of.values())
    broken = f", {len(found.bad):,} of them broken" if found.bad else ""
    yield f"{found.source}: {len(found.class_of):,} images of {len(sizes):,} classes{broken}"
    yield ""
    yield from _draw_histogram([*sizes.values()])
    yield from _list_small_classes(sizes)
    if found.sizes:
        yield f"pixels: {_describe_pixels([*found.sizes.values()], found.preparation.resize)}"
    yield ""
    if found.bad:
        yield f"broken: {len(found.bad):,} images; training fails unless dataset.on_bad_image=skip"
        yield from _list_some([*found.bad.values()])
    yield _count_across("identical pixels", "group", found, found.duplicates)
    yield from _list_some(
        [" = ".join(_name(found, file) for file in files) for files in found.duplicates]
    )
    if found.without_near:
        yield f"near-duplicates: not searched; {found.without_near}"
    else:
        yield _count_across("near-duplicates", "pair", found, [pair[:2] for pair in found.near])
        named = [
            (_name(found, pair.first), _name(found, pair.second), pair.bits) for pair in found.near
        ]
        yield from _list_some(
            [f"{one} ~ {other} ({bits} of 64 bits differ)" for one, other, bits in named]
        )
    yield ""
    yield from _suggest(found, batch_size)


def _draw_histogram(sizes: Sequence[int]) -> Iterator[str]:
    """Draw a histogram of the number of classes with 1, 2 to 3, 4 to 7, … images."""
    bins = Counter(size.bit_length() for size in sizes)
    longest = max(bins.values())
    yield f"{'images/class':>15}  classes"
    for power in range(min(bins), max(bins) + 1):
        low, high = 2 ** (power - 1), 2**power - 1
        span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        bar = "#" * -(-_BAR * bins[power] // longest)
        yield f"{span:>15}  {bins[power]:>7,}  {bar}".rstrip()


def _list_small_classes(sizes: Counter[str]) -> Iterator[str]:
    single = sorted(name for name, count in sizes.items() if count == 1)
    if single:
        named = ", ".join(single[:_MOST_NAMED]) + (", …" if len(single) > _MOST_NAMED else "")
        yield f"classes with a single image, which has no match: {len(single):,} ({named})"
    if few := sum(count < _PER_CLASS for count in sizes.values()):
        yield (
            f"classes with fewer images than images_per_class={_PER_CLASS} of the sampler "
            f"class-balanced, which then repeats images: {few:,}"
        )


def _describe_pixels(sizes: Sequence[tuple[int, int]], resize: Size) -> str:
    by_area = sorted(sizes, key=lambda size: size[0] * size[1])
    smallest, median, largest = (by_area[place] for place in (0, len(by_area) // 2, -1))
    text = ", ".join(
        f"{name} {width:,} x {height:,}"
        for name, (width, height) in (
            ("smallest", smallest),
            ("median", median),
            ("largest", largest),
        )
    )
    if enlarged := int((np.array(sizes).min(axis=1) < max(both_sides(resize))).sum()):
        text += f"; resize={resize} enlarges {enlarged:,} of {len(sizes):,}"
    return text


def _count_across(kind: str, unit: str, found: Inspection, groups: Sequence[Sequence[Item]]) -> str:
    if not groups:
        return f"{kind}: none"
    across = sum(len({found.class_of[file] for file in files}) > 1 for files in groups)
    plural = "" if len(groups) == 1 else "s"
    what = f" whose hashes differ in at most {NEAR} bits" if unit == "pair" else ""
    return f"{kind}: {len(groups):,} {unit}{plural}{what}, {across:,} across classes"


def _list_some(entries: Sequence[str]) -> Iterator[str]:
    for entry in entries[:_MOST_LISTED]:
        yield f"  {entry}"
    if len(entries) > _MOST_LISTED:
        yield f"  {len(entries) - _MOST_LISTED:,} more, which --out FILE.csv lists"


def _name(found: Inspection, image: Item) -> str:
    name, folder = name_of(image), found.options["root"]
    return name.removeprefix(folder + os.sep)


def _suggest(found: Inspection, batch_size: int) -> Iterator[str]:
    """Suggest a split, a cache, and the command that trains with both."""
    settings = dict(found.options)
    parts, divided = found.parts, ""
    if not found.parts.is_split:
        classes, fraction, source = {**parts.train, **parts.test}, 0.8, str(found.source)
        parts = split_classes(classes, fraction, 0, source)
        if len(parts.test) < _MEASURED_CLASSES or count_images(parts.test) < _MEASURED_IMAGES:
            fraction = _HALF
            parts = split_classes(classes, fraction, 0, source)
        else:
            settings["train_fraction"] = str(fraction)
        divided = f" (dataset.train_fraction={fraction})"
    measured = ", ".join(
        f"{_count(classes)} in the part {name!r}" if parts.gallery is not None else _count(classes)
        for name, classes in parts.by_name().items()
        if name != "train"
    )
    yield f"split: {_count(parts.train)} train, {measured} are measured{divided}"
    size = estimate_size(len(found.class_of), found.preparation)
    yield (
        f"cache: loading takes {1e3 * found.load_seconds:.1f} ms per image, "
        f"{found.load_seconds * count_images(parts.train):,.1f} s per epoch; dataset.cache decodes "
        f"each image once, into {size} at resize={found.preparation.resize}"
    )
    settings["cache"] = "runs/cache"
    if found.bad:
        settings["on_bad_image"] = "skip"
    default = ("name", "image-folder")
    changes = [
        f"dataset.{key}={value}" for key, value in settings.items() if (key, value) != default
    ]
    intact = sum(file not in found.bad for files in parts.train.values() for file in files)
    if intact < batch_size:  # the sampler will raise an error
        changes.append(f"sampler.batch_size={intact}")
    overrides = " ".join(f"--set {shlex.quote(change)}" for change in changes)
    yield ""
    yield f"dml train my-images {overrides} --out runs/mine"
    yield "(with --check instead of --out, it checks the recipe on these images and trains nothing)"


def _count(classes: Classes) -> str:
    return f"{len(classes):,} classes ({count_images(classes):,} images)"
