"""A run as one page: `write_report` makes ``report.html``, a single file that needs no network."""

from __future__ import annotations

from dml_train.report.page import COMPARISON, write_report

__all__ = ["COMPARISON", "write_report"]
