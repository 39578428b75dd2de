"""Functions of dml-eval-rs that describe a metric, renamed so that they are clear without the
module's name.
"""

from dml_eval_rs.metrics.names import family_of as metric_family
from dml_eval_rs.metrics.names import meaning_of as metric_meaning
from dml_eval_rs.metrics.names import title_of as metric_title

__all__ = ["metric_family", "metric_meaning", "metric_title"]
