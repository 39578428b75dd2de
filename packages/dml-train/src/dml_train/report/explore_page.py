"""Write the page of `dml explore`: a map of the items, their neighbours, classes, and lists to
check.

Shapes: `N` items, `S` items on the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from PIL import Image
from rich.console import Console

from dml_train.progress import stage
from dml_train.report.exploration import Exploration
from dml_train.report.rendering import select_evenly, write_page

MOST_ITEMS = 20_000  # on the page
_LISTED = 200  # maximum number of suspects, pairs or outliers
_TILES = 16  # pictures per row and column of a sheet
# The longer side of pictures in pixels, by the number of items: crops of photographs take 13 to 21
# MB.
_SIDES = ((2_000, 192), (6_000, 112), (MOST_ITEMS, 64))
_MEASURED = 32  # pictures whose size is looked at
_QUALITY = 75


def write_explore_page(found: Exploration, out: Path, console: Console | None = None) -> Path:
    """Write one self-contained page with all items, or 20,000 including all wrong queries.

    Return the path. Raise a `DmlError` if a picture can't be read.
    """
    lists = _lists(found)
    chosen = _choose(found, lists)
    side = next((side for most, side in _SIDES if len(chosen) <= most), _SIDES[-1][1])
    sheets: list[str] = []
    if found.picture is not None:
        some = chosen[select_evenly(len(chosen), _MEASURED)]
        # Small pictures aren't enlarged.
        side = min(side, max(max(found.picture(int(item)).shape[:2]) for item in some))
        with stage(console, "pictures", len(chosen)) as show:
            sheets = _draw_sheets(found.picture, chosen, side, lambda done: show(done, ""))
    code, style = (_read(name) for name in ("explore.js", "explore.css"))
    # "<" can't begin a tag in the script that contains the data.
    data = json.dumps(_describe(found, chosen, lists, side)).replace("<", "\\u003c")
    note = found.note
    if len(chosen) < len(found):
        note += (
            f" The page shows {len(chosen):,} of {len(found):,} items: all that are wrong or "
            "listed, and others, evenly selected."
        )
    return write_page(
        out,
        "explore.html.j2",
        title=found.title,
        note=note,
        data=Markup(data),
        sheets=sheets,
        code=Markup(code),
        style=Markup(style),
        hashes={"script": _digest(code), "style": _digest(style)},
    )


def _read(name: str) -> str:
    return files("dml_train.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return a source of the content security policy that allows this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _lists(found: Exploration) -> dict[str, Any]:
    """Return the items of each list, most remarkable first."""
    wrong, suspects = found.wrong, found.suspects
    first = found.scores[wrong, 0].astype(np.float64)
    doubtful = np.flatnonzero(suspects.score > 0.5)
    far = np.where(np.isfinite(suspects.distance), suspects.distance, -1.0)
    return {
        "wrong": wrong[np.argsort(first if found.is_distance else -first, kind="stable")],
        "suspects": doubtful[np.argsort(-suspects.score[doubtful], kind="stable")][:_LISTED],
        "duplicates": suspects.duplicates[:_LISTED],
        "outliers": np.argsort(-far, kind="stable")[: min(_LISTED, len(found) // 20 + 1)],
    }


def _choose(found: Exploration, lists: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Choose the items to show, in ascending order."""
    if len(found) <= MOST_ITEMS:
        return np.arange(len(found))
    listed = np.unique(np.concatenate([items.ravel() for items in lists.values()]))
    rest = np.setdiff1d(np.arange(len(found)), listed)
    room = max(0, MOST_ITEMS - len(listed))
    more = rest[select_evenly(len(rest), room)] if room else rest[:0]
    return np.union1d(listed, more)


def _describe(
    found: Exploration, chosen: npt.NDArray[np.int64], lists: dict[str, Any], side: int
) -> dict[str, Any]:
    """Return the data of the page in JSON's types. Items are numbered as on the page."""
    places = np.full(len(found), -1)
    places[chosen] = np.arange(len(chosen))
    names, classes_N, counts = np.unique(
        np.asarray(found.classes, dtype=object), return_inverse=True, return_counts=True
    )
    numbers = {str(name): number for number, name in enumerate(names)}
    matched = np.bincount(classes_N, found.matched, len(names)).astype(int)
    right = np.bincount(classes_N, found.matched & found.right[:, 0], len(names)).astype(int)
    nearest = found.nearest[chosen]
    # Neighbours that aren't on the page are numbered after the items.
    absent = np.unique(nearest[(nearest >= 0) & (places[nearest] < 0)])
    places[absent] = len(chosen) + np.arange(len(absent))
    shown = np.concatenate([chosen, absent])
    suggested = [numbers[str(name)] for name in found.suspects.suggested[chosen]]
    return {
        "count": len(chosen),
        "classes": np.stack([counts, matched, right], axis=1).tolist(),
        "names": [str(name) for name in names],
        "points": np.round(found.points[chosen], 4).tolist(),
        "labels": classes_N[shown].tolist(),
        "files": [found.files[item] for item in shown],
        "rank": found.rank[chosen].tolist(),
        "matched": found.matched[chosen].astype(int).tolist(),
        "score": np.round(found.suspects.score[chosen], 3).tolist(),
        "suggested": suggested,
        "distance": [
            round(float(value), 4) if np.isfinite(value) else None
            for value in found.suspects.distance[chosen]
        ],
        "nearest": np.where(nearest < 0, -1, places[nearest]).tolist(),
        "scores": np.round(found.scores[chosen].astype(np.float64), 4).tolist(),
        "right": found.right[chosen].astype(int).tolist(),
        "lists": {name: places[items].tolist() for name, items in lists.items()},
        "isDistance": found.is_distance,
        "side": side,
        "tiles": _TILES,
    }


def _draw_sheets(
    picture: Callable[[int], npt.NDArray[np.uint8]],
    items: Sequence[int] | npt.NDArray[np.int64],
    side: int,
    show: Callable[[int], None],
) -> list[str]:
    """Draw pictures on sheets of 16 x 16, and return the sheets as WebP in base64."""
    sheets = []
    for start in range(0, len(items), _TILES**2):
        own = items[start : start + _TILES**2]
        rows = -(-len(own) // _TILES)
        sheet = Image.new("RGB", (_TILES * side, rows * side), "white")
        for place, item in enumerate(own):
            image = Image.fromarray(picture(int(item)))
            image.thumbnail((side, side))
            row, column = divmod(place, _TILES)
            left, top = ((side - length) // 2 for length in image.size)
            sheet.paste(image, (column * side + left, row * side + top))
        file = BytesIO()
        sheet.save(file, "webp", quality=_QUALITY, method=2)
        sheets.append(base64.b64encode(file.getvalue()).decode())
        show(start + len(own))
    return sheets
