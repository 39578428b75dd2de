"""The components of dml-train, provided by the same hooks as those of any plugin."""

from __future__ import annotations

from collections.abc import Iterable

from dml_core import Component, hookimpl
from dml_train import data
from dml_train.networks import backbones
from dml_train.training import loggers


@hookimpl
def dml_datasets() -> Iterable[Component]:
    """List the data sets of `dml_train.data`."""
    return data.components()


@hookimpl
def dml_backbones() -> Iterable[Component]:
    """List the backbones of `dml_train.networks.backbones`."""
    return backbones.components()


@hookimpl
def dml_loggers() -> Iterable[Component]:
    """List the loggers of `dml_train.training.loggers`."""
    return loggers.components()
