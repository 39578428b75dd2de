"""Write pages about runs, as single files to be viewed offline: a run's report, and a comparison of
runs.
"""

from __future__ import annotations

from dml_train.report.page import write_report
from dml_train.report.side_by_side import write_side_by_side

__all__ = ["write_report", "write_side_by_side"]
