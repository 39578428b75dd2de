"""Rendering of the pages' templates."""

from __future__ import annotations

from typing import Any

from dml_core import metric_title
from dml_train.extras import extra
from dml_train.measure.listing import LEVEL

with extra("report", "a report"):
    import jinja2


SHOWN = ("recall@1", "recall@10", "r_precision", "map@r", "nmi")  # of embeddings beside the run's


def render(template: str, **contents: Any) -> bytes:
    """Render a page; its contents are escaped, so that they stay text."""
    page = _environment().get_template(template).render(level=LEVEL, **contents)
    # A file's name need not be UTF-8; in Python it then has surrogates, which can't be encoded.
    return page.encode("utf-8", "backslashreplace")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dml_train", "report"),
        autoescape=True,  # class and file names are untrusted
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["zip"] = zip
    environment.filters["metric_title"] = metric_title
    environment.filters["share"] = lambda value: f"{value:.4f}" if isinstance(value, int | float) else "–"
    environment.filters["signed"] = lambda value: f"{value:+.4f}".replace("-", "−")
    environment.filters["p_value"] = lambda value: f"{value:.4f}" if value >= 0.0001 else "< 0.0001"
    return environment
