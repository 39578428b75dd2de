"""Search results as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dml_train.files import write_atomically
from dml_train.report.figures import make_thumbnail
from dml_train.report.template import render
from dml_train.trained.model import TrainedModel
from dml_train.trained.search import Gallery, SearchResult


def write_search_page(
    model: TrainedModel, gallery: Gallery, results: Sequence[SearchResult], out: Path | str
) -> Path:
    """Write one page, as self-contained as a run's report: each query with its nearest items.

    Args:
        model: prepares the queries' pictures, as the network sees them.
        gallery: the items that were searched.
        results: of `search`.
        out: the page. An existing one is replaced.

    Returns:
        `out`.

    Raises:
        DmlError: an image that is missing now, or can't be decoded any more.
    """
    out = Path(out)
    queries = model.split_of([result.query for result in results])
    picture = gallery.picture
    page = render(
        "search.html.j2",
        title=f"Searched with {model.folder.path.resolve().name}",
        count=len(gallery.rows),
        note=gallery.note,
        score=results[0].score if results else "",
        results=results,
        names=gallery.names,
        query_picture=lambda index: make_thumbnail(queries.picture(index)),
        picture=None if picture is None else lambda index: make_thumbnail(picture(index)),
    )
    write_atomically(out, lambda file: file.write(page))
    return out
