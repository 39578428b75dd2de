"""What dml-eval-rs says of a metric's name, under names that say what they are about."""

from dml_eval_rs.metrics.names import family_of as metric_family
from dml_eval_rs.metrics.names import meaning_of as metric_meaning
from dml_eval_rs.metrics.names import title_of as metric_title

__all__ = ["metric_family", "metric_meaning", "metric_title"]
