"""Hooks, registry, samplers, memory queues and schedules: what every package of the toolkit builds on."""

from dml_core.components import (
    Backbone,
    BatchSampler,
    ClassLoss,
    ClassShard,
    Component,
    Dataset,
    Evaluation,
    Evaluator,
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
from dml_core.kinds import CONTEXT, KINDS, Kind
from dml_core.memory import MemoryQueue
from dml_core.options import Option, options_of
from dml_core.plugins import Plugins, plugins
from dml_core.registry import Registry, registry
from dml_core.samplers import ClassBalancedSampler, ShuffledSampler
from dml_core.schedules import Constant, Cosine, Linear, Schedule, Schedules, Step, schedule_from_table

__all__ = [
    "CONTEXT",
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
    "Kind",
    "Linear",
    "MemoryQueue",
    "Option",
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
    "UnknownName",
    "hookimpl",
    "is_class_loss",
    "is_shardable",
    "nearest",
    "options_of",
    "plugins",
    "registry",
    "schedule_from_table",
]
