"""Downloads from a local server that interrupts, refuses and sends wrong data."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dml_core import DmlError
from dml_train.data.published.download import download

CONTENT = bytes(i * 7 % 251 for i in range(200_000))
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()

Answer = Callable[[BaseHTTPRequestHandler], None]


def answer(
    content: bytes = CONTENT, *, status: int = 200, length: int | None = len(CONTENT), **headers: str
) -> Answer:
    """Send a status and this content, and announce its length, right or wrong."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if length is not None:
            handler.send_header("Content-Length", str(length))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return send


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[[Answer], str]]:
    """Start a server that gives this answer to each request, and return an address of it."""
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(send: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer()(self) if self.path == "/moved" else send(self)

            def log_message(self, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/set.zip"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def assert_empty(folder: Path) -> None:
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("length", [len(CONTENT), None])
def test_a_complete_file_gets_its_name(serve, tmp_path, length):
    assert download(serve(answer(length=length)), tmp_path / "set.zip", md5=MD5) == SHA256
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("set.zip", CONTENT)]


def test_no_checksum_is_needed(serve, tmp_path):
    assert download(serve(answer()), tmp_path / "set.zip") == SHA256


def test_a_redirection_is_followed(serve, tmp_path):
    address = serve(answer(b"", status=302, length=0, Location="/moved"))
    assert download(address, tmp_path / "set.zip", md5=MD5) == SHA256


def test_an_interrupted_download_is_an_error_and_leaves_nothing(serve, tmp_path):
    with pytest.raises(DmlError, match="can't download"):
        download(serve(answer(CONTENT[:1000])), tmp_path / "set.zip")
    assert_empty(tmp_path)


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(serve, tmp_path):
    with pytest.raises(DmlError, match="sent a file with the MD5"):
        download(serve(answer()), tmp_path / "set.zip", md5="0" * 32)
    assert_empty(tmp_path)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refused_request_is_an_error_with_its_status(serve, tmp_path, status):
    with pytest.raises(DmlError, match=f"can't download .*{status}"):
        download(serve(answer(b"", status=status, length=0)), tmp_path / "set.zip")
    assert_empty(tmp_path)


def test_an_unreachable_server_is_an_error(tmp_path):
    with pytest.raises(DmlError, match="can't download"):
        download("http://127.0.0.1:9/set.zip", tmp_path / "set.zip")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://host/set.zip", "set.zip", ""])
def test_only_addresses_of_http_and_https_are_taken(tmp_path, address):
    with pytest.raises(DmlError, match="expected an address like https://host/file"):
        download(address, tmp_path / "set.zip")


def test_a_folder_that_cannot_be_written_is_an_error(serve, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DmlError, match="can't write"):
        download(serve(answer()), tmp_path / "file" / "set.zip")
