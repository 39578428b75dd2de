"""Search results as a page."""

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

_SIDE = 256  # pixels of a picture's longer side, at most: twice its size on the page


def write_search_page(
    model: TrainedModel, gallery: Gallery, results: Sequence[SearchResult], out: Path | str
) -> Path:
    """Write `out`, one page, as self-contained as a run's report: each query with its nearest items; return its path.

    Pictures are those of the files, made smaller, and link to them, relative to the page; items without a file, or of a
    format that only the data set reads, are shown as the network sees them.

    Args:
        model: embedded the queries; prepares their pictures where a file's can't be read.
        gallery: the items that were searched.
        results: of `search`.
        out: the page. An existing one is replaced.

    Raises:
        DmlError: an image that is missing now, or can't be decoded any more.
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
    """Show a file's picture; where there is none, or a format that only the run's data set reads, the network's."""
    try:
        return make_thumbnail(read_image(file, _SIDE) if file else picture(), _SIDE)
    except DmlError:
        return make_thumbnail(picture(), _SIDE)


def _link(file: Path, page: Path) -> str:
    """Return the link from a page to a file: relative, or absolute where they share no root (drives of Windows)."""
    try:
        path = os.path.relpath(file.resolve(), page.resolve().parent)
    except ValueError:
        return file.resolve().as_uri()
    return "./" + quote(os.fsencode(Path(path).as_posix()))
