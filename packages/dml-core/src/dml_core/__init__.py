"""Hooks, registry, samplers, memory queues and schedules: what every package of the toolkit builds on.

Names whose modules need numpy or torch are imported at their first use, so that listings of plugins stay fast. Some
come from dml-eval-rs: `Labels`, `Relevance` and `Matching` say who matches whom, `Peers` are processes that share an
evaluation, and `METRICS` lists the metrics.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dml_core.components import (
    Component,
    Run,
)
from dml_core.errors import (
    DmlError,
    DuplicateName,
    InvalidOption,
    PluginLoadError,
    UnknownName,
    describe_error,
    nearest,
)
from dml_core.hookspecs import hookimpl
from dml_core.kinds import CONTEXT, KINDS, SINGULAR, Kind
from dml_core.options import Option, options_of, signature_of
from dml_core.plugins import Plugins, plugins
from dml_core.protocols.data import (
    BatchSampler,
    Dataset,
    FileBackedSplit,
    GroupedSplit,
    ImageReader,
    ImageReadingFactory,
    MiningSampler,
    RelatedDataset,
    Split,
    StoredImage,
    TrainingFilesFactory,
)
from dml_core.protocols.evaluation import (
    Backbone,
    ComparableEvaluation,
    ConfidenceInterval,
    Evaluation,
    Evaluator,
    IntervalEvaluation,
    LayeredBackbone,
    MatchesEvaluator,
    MiningEvaluator,
    PairedComparison,
    PeersEvaluator,
    RangeEvaluator,
    RestoringEvaluator,
    RunLogger,
    VerifyingEvaluator,
    takes_matches,
)
from dml_core.protocols.losses import (
    ClassLoss,
    ClassShard,
    MultiCenter,
    PairLoss,
    Rows,
    ShardableLoss,
    ShardedLoss,
    SparseLoss,
    SubsampledClasses,
    centers_per_class_of,
    class_fraction_of,
    is_class_loss,
    is_shardable,
)
from dml_core.registry import Registry, registry
from dml_core.schedules import Constant, Cosine, Linear, Schedule, Schedules, Step, schedule_from_table

if TYPE_CHECKING:
    from dml_core.drawing import draw_rows
    from dml_core.gradient_cache import GradientCache, backward_in_micro_batches, split_evenly
    from dml_core.memory import MemoryQueue
    from dml_core.mining import HardNegativeSampler
    from dml_core.ranks import all_gather_rows, rank_and_world_size
    from dml_core.samplers import ClassBalancedSampler, ShuffledSampler
    from dml_eval_rs.matches.labels import Labels
    from dml_eval_rs.matches.matching import Matching
    from dml_eval_rs.matches.relevance import Relevance
    from dml_eval_rs.metrics.names import METRICS
    from dml_eval_rs.metrics.names import family_of as metric_family
    from dml_eval_rs.metrics.names import meaning_of as metric_meaning
    from dml_eval_rs.metrics.names import title_of as metric_title
    from dml_eval_rs.peers import Peers

__version__ = version("dml-core")

# Name → its module, and its name there if that differs.
_HOMES = {
    "ClassBalancedSampler": "dml_core.samplers",
    "GradientCache": "dml_core.gradient_cache",
    "HardNegativeSampler": "dml_core.mining",
    "Labels": "dml_eval_rs.matches.labels",
    "METRICS": "dml_eval_rs.metrics.names",
    "Matching": "dml_eval_rs.matches.matching",
    "MemoryQueue": "dml_core.memory",
    "Peers": "dml_eval_rs.peers",
    "Relevance": "dml_eval_rs.matches.relevance",
    "ShuffledSampler": "dml_core.samplers",
    "all_gather_rows": "dml_core.ranks",
    "backward_in_micro_batches": "dml_core.gradient_cache",
    "draw_rows": "dml_core.drawing",
    "metric_family": "dml_eval_rs.metrics.names:family_of",
    "metric_meaning": "dml_eval_rs.metrics.names:meaning_of",
    "metric_title": "dml_eval_rs.metrics.names:title_of",
    "rank_and_world_size": "dml_core.ranks",
    "split_evenly": "dml_core.gradient_cache",
}

__all__ = [
    "CONTEXT",
    "KINDS",
    "METRICS",
    "SINGULAR",
    "Backbone",
    "BatchSampler",
    "ClassBalancedSampler",
    "ClassLoss",
    "ClassShard",
    "ComparableEvaluation",
    "Component",
    "ConfidenceInterval",
    "Constant",
    "Cosine",
    "Dataset",
    "DmlError",
    "DuplicateName",
    "Evaluation",
    "Evaluator",
    "FileBackedSplit",
    "GradientCache",
    "GroupedSplit",
    "HardNegativeSampler",
    "ImageReader",
    "ImageReadingFactory",
    "IntervalEvaluation",
    "InvalidOption",
    "Kind",
    "Labels",
    "LayeredBackbone",
    "Linear",
    "MatchesEvaluator",
    "Matching",
    "MemoryQueue",
    "MiningEvaluator",
    "MiningSampler",
    "MultiCenter",
    "Option",
    "PairLoss",
    "PairedComparison",
    "Peers",
    "PeersEvaluator",
    "PluginLoadError",
    "Plugins",
    "RangeEvaluator",
    "Registry",
    "RelatedDataset",
    "Relevance",
    "RestoringEvaluator",
    "Rows",
    "Run",
    "RunLogger",
    "Schedule",
    "Schedules",
    "ShardableLoss",
    "ShardedLoss",
    "ShuffledSampler",
    "SparseLoss",
    "Split",
    "Step",
    "StoredImage",
    "SubsampledClasses",
    "TrainingFilesFactory",
    "UnknownName",
    "VerifyingEvaluator",
    "__version__",
    "all_gather_rows",
    "backward_in_micro_batches",
    "centers_per_class_of",
    "class_fraction_of",
    "describe_error",
    "draw_rows",
    "hookimpl",
    "is_class_loss",
    "is_shardable",
    "metric_family",
    "metric_meaning",
    "metric_title",
    "nearest",
    "options_of",
    "plugins",
    "rank_and_world_size",
    "registry",
    "schedule_from_table",
    "signature_of",
    "split_evenly",
    "takes_matches",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, name_there = _HOMES[name].partition(":")
    value = getattr(importlib.import_module(module), name_there or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
