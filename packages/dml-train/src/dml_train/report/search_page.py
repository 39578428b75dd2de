"""Write search results as a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from dml_core import DmlError
from dml_train.data.decoding import read_image
from dml_train.report.rendering import make_thumbnail, write_page
from dml_train.trained.model import TrainedModel
from dml_train.trained.search import Gallery, SearchResult

_SIDE = 256  # maximum length of a picture's longer side in pixels: twice the size on the page


def write_search_page(
    model: TrainedModel, gallery: Gallery, results: Sequence[SearchResult], out: Path | str
) -> Path:
    """Write a self-contained page with all queries and the nearest items, and return the path.

    Pictures are reduced, and link to the files, relative to the page. If an item isn't a file, or
    in a format that only the data set can read, the page shows the network's input instead. Raise a
    `DmlError` if an image is missing now, or can't be decoded any more.

    Args:
        model: the model that embedded the queries.
        gallery: the items that were searched.
        results: the results of `search`.
        out: the page to write; an existing file is replaced.
    """
    out = Path(out)
    queries = model.split_of([result.query for result in results])
    picture = gallery.picture
    return write_page(
        out,
        "search.html.j2",
        title=f"Searched with {model.folder.path.resolve().name}",
        count=len(gallery.rows),
        note=gallery.note,
        score=results[0].score if results else "",
        results=results,
        names=gallery.names,
        query_picture=lambda index: _show(results[index].query, lambda: queries.picture(index)),
        picture=None
        if picture is None
        else lambda index: _show(gallery.files[index], lambda: picture(index)),
        link=lambda file: _link(file, out),
        files=gallery.files,
    )


def _show(file: Path | None, picture: Callable[[], npt.NDArray[np.uint8]]) -> str:
    """Show the picture of a file; if None, or only the run's data set can read it, show the
    network's input.
    """
    try:
        return make_thumbnail(read_image(file, _SIDE) if file else picture(), _SIDE)
    except DmlError:
        return make_thumbnail(picture(), _SIDE)


def _link(file: Path, page: Path) -> str:
    """Return the link from a page to a file: relative, or absolute if they are on different drives
    on Windows.
    """
    try:
        path = os.path.relpath(file.resolve(), page.resolve().parent)
    except ValueError:
        return file.resolve().as_uri()
    return "./" + quote(os.fsencode(Path(path).as_posix()))
