"""Hooks, registry, samplers, memory queues and schedules: what every package of the toolkit builds on."""

import importlib.metadata

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
    nearest,
)
from dml_core.hookspecs import hookimpl
from dml_core.kinds import CONTEXT, KINDS, Kind
from dml_core.memory import MemoryQueue
from dml_core.options import Option, options_of
from dml_core.plugins import Plugins, plugins
from dml_core.protocols.data import (
    BatchSampler,
    Dataset,
    FileBackedSplit,
    ImageReader,
    ImageReadingFactory,
    Split,
)
from dml_core.protocols.evaluation import (
    Backbone,
    ComparableEvaluation,
    ConfidenceInterval,
    Evaluation,
    Evaluator,
    IntervalEvaluation,
    PairedComparison,
    Peers,
    RestoringEvaluator,
    RunLogger,
    ShardedEvaluator,
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
from dml_core.ranks import all_gather_rows, rank_and_world_size
from dml_core.registry import Registry, registry
from dml_core.samplers import ClassBalancedSampler, ShuffledSampler
from dml_core.schedules import Constant, Cosine, Linear, Schedule, Schedules, Step, schedule_from_table

__version__ = importlib.metadata.version("dml-core")

__all__ = [
    "CONTEXT",
    "KINDS",
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
    "ImageReader",
    "ImageReadingFactory",
    "IntervalEvaluation",
    "InvalidOption",
    "Kind",
    "Linear",
    "MemoryQueue",
    "MultiCenter",
    "Option",
    "PairLoss",
    "PairedComparison",
    "Peers",
    "PluginLoadError",
    "Plugins",
    "Registry",
    "RestoringEvaluator",
    "Rows",
    "Run",
    "RunLogger",
    "Schedule",
    "Schedules",
    "ShardableLoss",
    "ShardedEvaluator",
    "ShardedLoss",
    "ShuffledSampler",
    "SparseLoss",
    "Split",
    "Step",
    "SubsampledClasses",
    "UnknownName",
    "__version__",
    "all_gather_rows",
    "centers_per_class_of",
    "class_fraction_of",
    "hookimpl",
    "is_class_loss",
    "is_shardable",
    "nearest",
    "options_of",
    "plugins",
    "rank_and_world_size",
    "registry",
    "schedule_from_table",
]
