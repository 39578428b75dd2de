"""Pages of runs, each a single file that needs no network: one run's report, and several runs side by side."""

from __future__ import annotations

from dml_train.report.page import COMPARISON, write_report
from dml_train.report.side_by_side import write_side_by_side

__all__ = ["COMPARISON", "write_report", "write_side_by_side"]
