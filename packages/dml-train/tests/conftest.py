"""Fixtures for the trainer's tests."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from train_support.photo_world import train_on, write_photos
from train_support.tiny_world import make_document, make_registry

from dml_core import Registry
from dml_train import cli
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.trained.model import TrainedModel, open_model
from dml_train.training.run import train


@pytest.fixture
def registry() -> Registry:
    return make_registry()


@pytest.fixture
def tiny_document() -> Callable[..., dict[str, Any]]:
    return make_document


@pytest.fixture(scope="session")
def photo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run on photos; tests must copy it before they change it."""
    folder = tmp_path_factory.mktemp("trained")
    return train_on(write_photos(folder / "data"), folder / "run", make_registry())


@pytest.fixture(scope="session")
def model(photo_run: Path) -> TrainedModel:
    """Open the network of `photo_run`."""
    return open_model(photo_run, make_registry())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write thirty photos that were not used to train the run, five per class."""
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
    """Make a context that limits the size of files, so that writing more fails as on a full disk.

    Use this only for a part of a test, since pytest's output may also be written to a file.
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
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Start a server on this machine that answers with `content`, or the first `sent` bytes; return
    the address.

    If the status is not 200, the answer is empty, and redirects the client to an address that sends
    the content.
    """
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def serve(
        content: bytes, name: str = "set.zip", *, status: int = 200, sent: int | None = None,
        announces_length: bool = True,
    ) -> str:  # fmt: skip
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers = self.path == "/moved" or status == 200
                self.send_response(200 if answers else status)
                if announces_length:
                    self.send_header("Content-Length", str(len(content) if answers else 0))
                self.send_header("Location", "/moved")
                self.end_headers()
                self.wfile.write(content[:sent] if answers else b"")

            def log_message(self, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/{name}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def quiet() -> Console:
    return Console(file=StringIO())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def run(
    registry: Registry, tiny_document: Callable[..., dict[str, Any]], quiet: Console, out: Path
) -> Callable[..., RunFolder]:
    """Train by the tiny recipe, with some keys changed."""

    def run(
        where: Path = out, resume: bool = False, force: bool = False, **tables: Any
    ) -> RunFolder:
        recipe = parse(tiny_document(**tables), registry)
        return train(recipe, where, resume=resume, force=force, registry=registry, console=quiet)

    return run
