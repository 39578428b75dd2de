"""The findings of an inspection as lines of text, and the command to begin with."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dml_train.data.inspection import NEAR, Inspection
from dml_train.data.packed import estimate_size
from dml_train.data.parts import Classes, count_images, split_classes

_MOST_LISTED = 10  # findings of a kind
_MOST_NAMED = 5  # classes
_PER_CLASS = 4  # images_per_class of the recipes that use the sampler "class-balanced"
_BAR = 40  # characters of the longest bar
# Measure a fifth of the classes if they are at least this many, with this many images; else half, the default.
_MEASURED_CLASSES, _MEASURED_IMAGES = 50, 1_000
_HALF = 0.5


def describe_inspection(found: Inspection, batch_size: int) -> Iterator[str]:
    """Describe an inspection, line by line: counts, sizes, findings, and how to begin.

    Args:
        found: by the preparation of the recipe `my-images`.
        batch_size: of that recipe.
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
        yield f"broken: {len(found.bad):,} images, which training refuses unless dataset.on_bad_image=skip"
        yield from _list_some([*found.bad.values()])
    yield _count_across("identical pixels", "group", found, found.duplicates)
    yield from _list_some([" = ".join(_name(found, file) for file in files) for files in found.duplicates])
    if found.without_near:
        yield f"near-duplicates: not searched; {found.without_near}"
    else:
        yield _count_across("near-duplicates", "pair", found, [pair[:2] for pair in found.near])
        named = [(_name(found, pair.first), _name(found, pair.second), pair.bits) for pair in found.near]
        yield from _list_some([f"{one} ~ {other} ({bits} of 64 bits differ)" for one, other, bits in named])
    yield ""
    yield from _suggest(found, batch_size)


def _draw_histogram(sizes: Sequence[int]) -> Iterator[str]:
    """Draw how many classes have 1, 2 to 3, 4 to 7, … images."""
    bins = Counter(size.bit_length() for size in sizes)
    longest = max(bins.values())
    yield f"{'images a class':>15}  classes"
    for power in range(min(bins), max(bins) + 1):
        low, high = 2 ** (power - 1), 2**power - 1
        span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        bar = "#" * -(-_BAR * bins[power] // longest)
        yield f"{span:>15}  {bins[power]:>7,}  {bar}".rstrip()


def _list_small_classes(sizes: Counter[str]) -> Iterator[str]:
    single = sorted(name for name, count in sizes.items() if count == 1)
    if single:
        named = ", ".join(single[:_MOST_NAMED]) + (", …" if len(single) > _MOST_NAMED else "")
        yield f"classes with a single image, which matches no other: {len(single):,} ({named})"
    if few := sum(count < _PER_CLASS for count in sizes.values()):
        yield (
            f"classes with fewer images than images_per_class={_PER_CLASS} of the sampler class-balanced, which "
            f"repeats theirs: {few:,}"
        )


def _describe_pixels(sizes: Sequence[tuple[int, int]], resize: int) -> str:
    by_area = sorted(sizes, key=lambda size: size[0] * size[1])
    smallest, median, largest = (by_area[place] for place in (0, len(by_area) // 2, -1))
    text = ", ".join(
        f"{name} {width:,} x {height:,}"
        for name, (width, height) in (("smallest", smallest), ("median", median), ("largest", largest))
    )
    if enlarged := int((np.array(sizes).min(axis=1) < resize).sum()):
        text += f"; resize={resize} enlarges {enlarged:,} of {len(sizes):,}"
    return text


def _count_across(kind: str, unit: str, found: Inspection, groups: Sequence[Sequence[Path]]) -> str:
    if not groups:
        return f"{kind}: none"
    across = sum(map(found.across_classes, groups))
    plural = "" if len(groups) == 1 else "s"
    what = f" whose hashes differ in at most {NEAR} bits" if unit == "pair" else ""
    return f"{kind}: {len(groups):,} {unit}{plural}{what}, {across:,} across classes"


def _list_some(entries: Sequence[str]) -> Iterator[str]:
    for entry in entries[:_MOST_LISTED]:
        yield f"  {entry}"
    if len(entries) > _MOST_LISTED:
        yield f"  {len(entries) - _MOST_LISTED:,} more, which --out FILE.csv lists"


def _name(found: Inspection, file: Path) -> str:
    folder = Path(found.options["root"])
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def _suggest(found: Inspection, batch_size: int) -> Iterator[str]:
    """Suggest a split, a cache, and the command that trains with both."""
    settings = dict(found.options)
    parts, divided = found.parts, ""
    if not found.is_split:
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
        f"{found.load_seconds * count_images(parts.train):,.1f} s per epoch; dataset.cache decodes each image once, "
        f"into {size} at resize={found.preparation.resize}"
    )
    settings["cache"] = "runs/cache"
    if found.bad:
        settings["on_bad_image"] = "skip"
    default = ("name", "image-folder")
    changes = [f"dataset.{key}={value}" for key, value in settings.items() if (key, value) != default]
    intact = sum(file not in found.bad for files in parts.train.values() for file in files)
    if intact < batch_size:  # which the sampler refuses
        changes.append(f"sampler.batch_size={intact}")
    overrides = " ".join(f"--set {shlex.quote(change)}" for change in changes)
    yield ""
    yield f"dml train my-images {overrides} --out runs/mine"
    yield "(with --check instead of --out, it checks the recipe on these images and trains nothing)"


def _count(classes: Classes) -> str:
    return f"{len(classes):,} classes ({count_images(classes):,} images)"
