"""The pages' templates, filled in."""

from __future__ import annotations

from typing import Any

import jinja2

from dml_train.report.finished import LEVEL


def render(template: str, **contents: Any) -> bytes:
    """A page, whole, in which all that is filled in stays text."""
    page = _environment().get_template(template).render(level=LEVEL, **contents)
    # Names of files need not be UTF-8; Python has them with surrogates, which can't be encoded.
    return page.encode("utf-8", "backslashreplace")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dml_train", "report"),
        autoescape=True,  # names of classes and files come from anywhere
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["zip"] = zip
    environment.filters["share"] = lambda value: f"{value:.4f}" if isinstance(value, int | float) else "–"
    environment.filters["signed"] = lambda value: f"{value:+.4f}".replace("-", "−")
    environment.filters["chance"] = lambda value: f"{value:.4f}" if value >= 0.0001 else "< 0.0001"
    return environment
