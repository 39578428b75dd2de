"""One run from its recipe to its folder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dml_core import DmlError
from dml_train import checkpoint
from dml_train.recipe import parse
from dml_train.training import reopen, train


@pytest.fixture
def run(tiny_registry, tiny_document, quiet, out):
    """Train by the tiny recipe with some keys changed."""

    def run(where=out, resume=False, force=False, **tables):
        recipe = parse(tiny_document(**tables), tiny_registry)
        return train(recipe, where, resume=resume, force=force, registry=tiny_registry, console=quiet)

    return run


def lines(folder):
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


def test_a_run_leaves_its_folder(run):
    folder = run()
    assert [line["step"] for line in lines(folder)] == [*range(1, 13), 12]
    assert json.loads(folder.evaluation.read_text())["recall"]["1"] > 0.5
    embeddings, labels = np.load(folder.embeddings()), np.load(folder.labels())
    assert embeddings.shape == (48, 8)
    assert embeddings.dtype == np.float32
    assert labels.shape == (48,)
    assert [c.step for c in checkpoint.whole(folder.checkpoints)] == [12, 8]


def test_the_loss_falls(run):
    losses = [line["loss"] for line in lines(run(training={"steps": 60})) if "loss" in line]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.3
