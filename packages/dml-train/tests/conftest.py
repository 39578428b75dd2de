"""Fixtures for the trainer's tests."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from train_support.photo_world import photo_registry, train_on, write_photos
from train_support.tiny_world import make_document, make_registry

from dml_core import Registry
from dml_train import cli
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.trained.model import TrainedModel, open_model
from dml_train.training.run import train


@pytest.fixture
def tiny_registry() -> Registry:
    return make_registry()


@pytest.fixture
def tiny_document() -> Callable[..., dict[str, Any]]:
    return make_document


@pytest.fixture(scope="session")
def registry() -> Registry:
    """The components of `photo_run`; tests of other components override it."""
    return photo_registry()


@pytest.fixture(scope="session")
def photo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on photos; tests that change it copy it."""
    folder = tmp_path_factory.mktemp("trained")
    return train_on(write_photos(folder / "data"), folder / "run", photo_registry())


@pytest.fixture(scope="session")
def model(photo_run: Path) -> TrainedModel:
    """The network of `photo_run`."""
    return open_model(photo_run, photo_registry())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Thirty photos that the run wasn't trained on, five of each class."""
    return write_photos(tmp_path / "photos", seed=1)


@pytest.fixture
def dml(registry: Registry) -> Callable[..., Result]:
    """Call the command in this process; it finds components in the fixture `registry`."""

    def dml(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(
            cli.main, [str(a) for a in arguments], obj=registry, catch_exceptions=False
        )
        assert result.exit_code == code, result.output
        return result

    return dml


@pytest.fixture
def small_files() -> Callable[[int], AbstractContextManager[None]]:
    """Make a context in which the kernel refuses files larger than so many bytes, as a full disk would.

    It covers a part of a test, since pytest's own output may be such a file.
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
    """Use one thread: several are slower for tensors this small, and much slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(
    tiny_registry: Registry, tiny_document: Callable[..., dict[str, Any]], quiet: Console, out: Path
) -> Callable[..., RunFolder]:
    """Train by the tiny recipe, with some keys changed."""

    def run(where: Path = out, resume: bool = False, force: bool = False, **tables: Any) -> RunFolder:
        recipe = parse(tiny_document(**tables), tiny_registry)
        return train(recipe, where, resume=resume, force=force, registry=tiny_registry, console=quiet)

    return run
