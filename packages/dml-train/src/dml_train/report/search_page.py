"""What searches found, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dml_train.files import write_atomically
from dml_train.report.figures import thumbnail
from dml_train.report.template import render
from dml_train.trained.model import TrainedModel
from dml_train.trained.search import Found, Gallery


def write_search_page(
    model: TrainedModel, gallery: Gallery, found: Sequence[Found], score: str, out: Path
) -> Path:
    """Write one page, as self-contained as a run's report: each query with what it found.

    Args:
        model: shows the queries as it sees them.
        gallery: what was searched.
        found: for every query.
        score: what the scores are.
        out: the page. One that was there is replaced.

    Returns:
        `out`.

    Raises:
        DmlError: an image that has gone, or can't be decoded any more.
    """
    queries = model.split_of([one.query for one in found])
    look = gallery.picture
    page = render(
        "search.html.j2",
        title=f"Searched with {model.folder.path.resolve().name}",
        count=len(gallery.rows),
        note=gallery.note,
        score=score,
        found=found,
        names=gallery.names,
        query_picture=lambda place: thumbnail(queries.picture(place)),
        picture=None if look is None else lambda place: thumbnail(look(place)),
    )
    write_atomically(out, lambda file: file.write(page))
    return out
