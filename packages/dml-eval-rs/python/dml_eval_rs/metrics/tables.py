"""Results that can be printed as tables: text, Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "−": "$-$",
        "±": r"$\pm$",
    }
)


@dataclass(frozen=True, slots=True)
class Table:
    """Names in the first column, with values in other columns."""

    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()  # column titles; can be empty


class Tabular(ABC):
    """A result that can be printed as a table."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """Return the result as a table, with rounded values."""

    @abstractmethod
    def to_dict(self) -> Mapping[str, Any]:
        """Return the numbers by name, to be saved as JSON."""

    def precise(self) -> Table:
        """Return the table with all digits, to be read by other programs."""
        return Table([(name, repr(value)) for name, value in self.to_dict().items()])

    def __str__(self) -> str:
        """Return the table as text with aligned columns."""
        table = self.table()
        rows = [table.header, *table.rows] if table.header else list(table.rows)
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = []
        for first, *others in rows:
            cells = [
                first.ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(others, widths[1:])),
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the table as HTML; used by notebooks."""

        def line(cells: Sequence[str], kind: str) -> str:
            first, *others = map(html.escape, cells)
            values = "".join(f"<{kind}>{cell}</{kind}>" for cell in others)
            return f'<tr><th style="text-align: left">{first}</th>{values}</tr>'

        table = self.table()
        header = [line(table.header, "th")] if table.header else []
        return f"<table>{''.join([*header, *(line(row, 'td') for row in table.rows)])}</table>"

    def to_markdown(self) -> str:
        """Return the table as Markdown, to be used in a README or an issue."""
        table = self.table()
        header = table.header or ("metric", "value")
        rules = ["---", *("---:" for _ in header[1:])]
        rows = [[cell.replace("|", r"\|") for cell in row] for row in (header, rules, *table.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def to_latex(self) -> str:
        """Return the table as a LaTeX tabular. Note that a paper must use the package booktabs."""
        table = self.table()
        rows = [_latex(row) for row in table.rows]
        if table.header:
            rows = [_latex(table.header), r"\midrule", *rows]
        begin = rf"\begin{{tabular}}{{l{'r' * (len(table.rows[0]) - 1)}}}"
        return "\n".join([begin, r"\toprule", *rows, r"\bottomrule", r"\end{tabular}"])

    def to_csv(self) -> str:
        """Return the table as comma-separated values, with all digits."""
        table, file = self.precise(), io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(
            [table.header or ("metric", "value"), *table.rows]
        )
        return file.getvalue()


def _latex(row: Sequence[str]) -> str:
    cells = (re.sub(r"(?<!\w)-(?=\d)", "$-$", cell.translate(_LATEX)) for cell in row)
    return " & ".join(cells) + r" \\"


@dataclass(frozen=True, eq=False, repr=False)
class Measured(Tabular, Mapping[str, float]):
    """Measured metrics by name, in the requested order. Results are equal if all values are
    equal.
    """

    _values: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(
                f"no metric {name!r} was measured; expected one of {', '.join(self)}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return list(self) == list(other) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()})"
