"""Logged values of runs, a comparison to the bit, and an observer that stops a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from dml_core import DmlError, Registry, hookimpl
from dml_train.run_folder import RunFolder
from dml_train.training.checkpoint import Checkpoint, newest_intact


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    """Read all logged lines."""
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


def losses(folder: RunFolder) -> list[float]:
    """Read the losses of all logged steps."""
    return [line["loss"] for line in lines(folder) if "loss" in line]


def same(one: Any, other: Any) -> bool:
    """Return whether trees of tensors and plain values are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def check_same_bits(one: RunFolder, other: RunFolder) -> Checkpoint:
    """Check that both runs logged, embedded and saved the same bits; return the newest
    checkpoint.
    """
    assert one.metrics.read_bytes() == other.metrics.read_bytes()
    assert np.array_equal(np.load(one.embeddings()), np.load(other.embeddings()))
    newest, others = (newest_intact(folder.checkpoints) for folder in (one, other))
    assert newest is not None
    assert others is not None
    assert newest.step == others.step
    assert same(newest.weights(), others.weights())
    assert same(newest.state(), others.state())
    return newest


class Stop(DmlError):
    """Error by which `StopAt` ends a run."""


class StopAt:
    """Observer that ends the run after `step`, as if the process had been killed."""

    def __init__(self, step: int) -> None:
        self.step = step

    @hookimpl
    def dml_step_end(self, step: int) -> None:
        if step == self.step:
            raise Stop("stopped here")


@contextmanager
def stopped(registry: Registry, step: int) -> Iterator[None]:
    """Stop the run in this context after `step`."""
    stopper = StopAt(step)
    registry.plugins.register(stopper, distribution="stopper")
    with pytest.raises(Stop):
        yield
    registry.plugins.manager.unregister(stopper)
