"""Hooks, registry, samplers, memory queues and schedules: what every package of the toolkit builds on."""

import importlib.metadata

from dml_core.components import (
    Backbone,
    BatchSampler,
    ClassLoss,
    ClassShard,
    Component,
    Dataset,
    Evaluation,
    Evaluator,
    MultiCenter,
    PairLoss,
    Peers,
    Rows,
    Run,
    RunLogger,
    ShardableLoss,
    ShardedEvaluator,
    ShardedLoss,
    SparseLoss,
    Split,
    SubsampledClasses,
    centers_per_class_of,
    class_fraction_of,
    is_class_loss,
    is_shardable,
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
from dml_core.memory import MemoryQueue
from dml_core.plugins import Plugins, plugins
from dml_core.ranks import all_gather_rows, rank_and_world_size
from dml_core.registry import KINDS, Registry, registry
from dml_core.samplers import ClassBalancedSampler, ShuffledSampler
from dml_core.schedules import Constant, Cosine, Linear, Schedule, Schedules, Step, schedule_from_table

__version__ = importlib.metadata.version("dml-core")

__all__ = [
    "KINDS",
    "Backbone",
    "BatchSampler",
    "ClassBalancedSampler",
    "ClassLoss",
    "ClassShard",
    "Component",
    "Constant",
    "Cosine",
    "Dataset",
    "DmlError",
    "DuplicateName",
    "Evaluation",
    "Evaluator",
    "InvalidOption",
    "Linear",
    "MemoryQueue",
    "MultiCenter",
    "PairLoss",
    "Peers",
    "PluginLoadError",
    "Plugins",
    "Registry",
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
    "plugins",
    "rank_and_world_size",
    "registry",
    "schedule_from_table",
]
