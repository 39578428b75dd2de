"""Fixtures for the trainer's tests."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

import dml_core.plugin
from dml_core import Plugins, Registry
from dml_train import cli
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training.run import train

sys.path.insert(0, str(Path(__file__).parent))  # where loader processes find tiny_world, too

from tiny_world import TinyPlugin


@pytest.fixture
def tiny_registry() -> Registry:
    plugins = Plugins()
    plugins.register(dml_core.plugin, distribution="dml-core", version="0.1.0")
    plugins.register(TinyPlugin(), distribution="tiny", version="1.0")
    return Registry(plugins)


@pytest.fixture
def tiny_document() -> Callable[..., dict[str, Any]]:
    """A recipe's document; keyword arguments replace keys of its tables: ``training={"steps": 3}``."""

    def make(**tables: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "training": {"steps": 12, "seed": 3, "device": "cpu"},
            "dataset": {"name": "tiny"},
            "backbone": {"name": "tiny"},
            "embedding": {"dim": 8},
            "sampler": {"name": "class-balanced", "classes_per_batch": 4, "images_per_class": 2},
            "loss": {"name": "tiny"},
            "optimizer": {"name": "adamw", "lr": 0.01},
            "checkpoints": {"every": 4, "unit": "step"},
            "logging": {"every": 3, "loggers": [{"name": "jsonl"}]},
        }
        for name, table in tables.items():
            document[name] = {**document.get(name, {}), **table}
        return document

    return make


@pytest.fixture
def dml(registry: Registry) -> Callable[..., Result]:
    """Call the command in this process; it finds components in the test module's fixture `registry`."""

    def dml(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(
            cli.main, [str(a) for a in arguments], obj=registry, catch_exceptions=False
        )
        assert result.exit_code == code, result.output
        return result

    return dml


@pytest.fixture
def small_files() -> Callable[[int], AbstractContextManager[None]]:
    """While it lasts, the kernel refuses to make any file larger than so many bytes, as a full disk would.

    Not for all of a test: pytest's own output may be such a file.
    """

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def quiet() -> Console:
    return Console(file=StringIO())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small are slower, and on a busy machine much slower, with more threads than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(
    tiny_registry: Registry, tiny_document: Callable[..., dict[str, Any]], quiet: Console, out: Path
) -> Callable[..., RunFolder]:
    """Train by the tiny recipe with some keys changed."""

    def run(where: Path = out, resume: bool = False, force: bool = False, **tables: Any) -> RunFolder:
        recipe = parse(tiny_document(**tables), tiny_registry)
        return train(recipe, where, resume=resume, force=force, registry=tiny_registry, console=quiet)

    return run
