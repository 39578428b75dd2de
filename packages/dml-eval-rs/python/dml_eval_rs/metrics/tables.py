"""Tables of results: as text, Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "−": "$-$",
        "±": r"$\pm$",
    }
)


@dataclass(frozen=True, slots=True)
class Table:
    """Names in the first column and values in the others.

    Attributes:
        rows: the cells, row by row.
        header: the columns' titles; empty for none.
    """

    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()

    def to_text(self) -> str:
        """Return aligned columns."""
        rows = [self.header, *self.rows] if self.header else list(self.rows)
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = (
            [
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths))
            ]
            for row in rows
        )
        return "\n".join("  ".join(cells).rstrip() for cells in lines)

    def to_markdown(self) -> str:
        """Return a table for a README or an issue."""
        header = self.header or ("metric", "value")
        rules = ["---", *("---:" for _ in header[1:])]
        rows = [[cell.replace("|", r"\|") for cell in row] for row in (header, rules, *self.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def to_latex(self) -> str:
        """Return a tabular for a paper, which needs the package booktabs."""
        rows = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in self.rows]
        if self.header:
            titles = " & ".join(_latex(cell) for cell in self.header) + r" \\"
            rows = [titles, r"\midrule", *rows]
        columns = "l" + "r" * (len(self.rows[0]) - 1)
        return "\n".join(
            [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *rows, r"\bottomrule", r"\end{tabular}"]
        )

    def to_csv(self) -> str:
        """Return comma-separated values."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.header or ("metric", "value"), *self.rows])
        return file.getvalue()

    def to_html(self) -> str:
        """Return a table for notebooks."""

        def line(cells: Sequence[str], kind: str) -> str:
            first, *others = map(html.escape, cells)
            values = "".join(f"<{kind}>{cell}</{kind}>" for cell in others)
            return f'<tr><th style="text-align: left">{first}</th>{values}</tr>'

        header = [line(self.header, "th")] if self.header else []
        return f"<table>{''.join([*header, *(line(row, 'td') for row in self.rows)])}</table>"


def _latex(cell: str) -> str:
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", cell.translate(_LATEX))


class Tabular(ABC):
    """A result that prints as a table."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """Return the result as a table with rounded values."""

    def precise(self) -> Table:
        """Return the table for other programs, with all digits."""
        return self.table()

    def __str__(self) -> str:
        """Return the table as text."""
        return self.table().to_text()

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return self.table().to_html()

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        return self.table().to_markdown()

    def to_latex(self) -> str:
        """Return the table as a LaTeX tabular, which needs the package booktabs."""
        return self.table().to_latex()

    def to_csv(self) -> str:
        """Return the table as comma-separated values with all digits."""
        return self.precise().to_csv()
