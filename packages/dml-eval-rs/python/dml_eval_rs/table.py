"""Tables of two columns, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

Rows = Sequence[tuple[str, str]]


def to_text(rows: Rows) -> str:
    """Align names left and values right."""
    left, right = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"{name:<{left}}  {value:>{right}}" for name, value in rows)


def to_html(rows: Rows) -> str:
    """Return a table for notebooks."""
    cells = "".join(
        f'<tr><th style="text-align: left">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{cells}</table>"
