"""Downloads from a local server that stalls, interrupts and sends wrong data."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dml_core import DmlError
from dml_train.data.published.download import download

CONTENT = bytes(i * 7 % 251 for i in range(200_000))
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()

Answer = Callable[["Handler", int], None]


class Handler(BaseHTTPRequestHandler):
    """Handler that gives the n-th request the server's n-th answer, and all later ones the last answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        number = len(server.ranges)
        server.ranges.append(self.headers.get("Range"))
        server.answers[min(number, len(server.answers) - 1)](self, self.offset())

    def offset(self) -> int:
        given = self.headers.get("Range")
        return int(given.removeprefix("bytes=").removesuffix("-")) if given else 0

    def head(self, status: int, length: int | None, **headers: str) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def honest(content: bytes = CONTENT, tag: str | None = '"one"') -> Answer:
    """Answer like a correct server, by byte ranges."""

    def answer(handler: Handler, offset: int) -> None:
        tags = {} if tag is None else {"ETag": tag}
        if offset and handler.headers.get("If-Range") == tag:
            span = f"bytes {offset}-{len(content) - 1}/{len(content)}"
            handler.head(206, len(content) - offset, Content_Range=span, **tags)
            handler.wfile.write(content[offset:])
        else:
            handler.head(200, len(content), **tags)
            handler.wfile.write(content)

    return answer


def interrupted(after: int, tag: str = '"one"', content: bytes = CONTENT) -> Answer:
    """Announce the full length, but close the connection after `after` bytes; ranges are honoured."""

    def answer(handler: Handler, offset: int) -> None:
        if offset:
            span = f"bytes {offset}-{len(content) - 1}/{len(content)}"
            handler.head(206, len(content) - offset, Content_Range=span, ETag=tag)
        else:
            handler.head(200, len(content), ETag=tag)
        handler.wfile.write(content[offset : offset + after])
        handler.close_connection = True

    return answer


def stalled(after: int) -> Answer:
    def answer(handler: Handler, offset: int) -> None:
        handler.head(200, len(CONTENT), ETag='"one"')
        handler.wfile.write(CONTENT[:after])
        handler.wfile.flush()
        handler.server.over.wait(120)
        handler.close_connection = True

    return answer


def status_only(status: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: Handler, offset: int) -> None:
        handler.head(status, len(body), **headers)
        handler.wfile.write(body)

    return answer


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[..., tuple[str, list[str | None]]]]:
    """Start a server with these answers; return its address and the list of requested ranges."""
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(*answers: Answer) -> tuple[str, list[str | None]]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.answers, server.ranges, server.over = answers, [], threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/set.zip", server.ranges

    yield start
    for server in servers:
        server.over.set()
        server.shutdown()
        server.server_close()


def get(address: str, file: Path, **options) -> str:
    return download(address, file, **{"timeout": 60.0, "pause": 0.0} | options)


def assert_only(file: Path) -> None:
    """Assert that the folder holds the complete file and nothing else."""
    assert file.read_bytes() == CONTENT
    assert [*file.parent.iterdir()] == [file]


def test_a_good_server_needs_one_request(serve, tmp_path):
    address, ranges = serve(honest())
    seen = []
    sha256 = get(
        address, tmp_path / "set.zip", md5=MD5, progress=lambda have, total: seen.append((have, total))
    )
    assert sha256 == SHA256
    assert_only(tmp_path / "set.zip")
    assert ranges == [None]
    assert seen[-1] == (200_000, 200_000)


def test_a_stalled_download_resumes(serve, tmp_path):
    address, ranges = serve(stalled(70_000), honest())
    get(address, tmp_path / "set.zip", timeout=3.0)  # a busy machine may need this long for an answer
    assert_only(tmp_path / "set.zip")
    assert ranges[:2] == [None, "bytes=70000-"]  # more if an honest answer timed out, too


def test_an_interrupted_download_resumes_until_complete(serve, tmp_path):
    address, ranges = serve(interrupted(60_000))
    get(address, tmp_path / "set.zip", md5=MD5, tries=2)
    assert_only(tmp_path / "set.zip")
    assert ranges == [None, "bytes=60000-", "bytes=120000-", "bytes=180000-"]


def test_a_download_without_progress_fails_and_keeps_its_part(serve, tmp_path):
    address, ranges = serve(interrupted(60_000), interrupted(0))
    with pytest.raises(
        DmlError, match=r"closed the connection .*, 3 times without progress; 60,000 bytes are kept"
    ):
        get(address, tmp_path / "set.zip", tries=3)
    assert len(ranges) == 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["set.zip.part", "set.zip.part.json"]


def test_a_later_call_resumes(serve, tmp_path):
    address, ranges = serve(interrupted(60_000), interrupted(0), honest())
    with pytest.raises(DmlError):
        get(address, tmp_path / "set.zip", tries=1)
    get(address, tmp_path / "set.zip", md5=MD5)
    assert_only(tmp_path / "set.zip")
    assert ranges[-1] == "bytes=60000-"


def test_a_complete_part_needs_no_request(serve, tmp_path):
    address, ranges = serve(status_only(404))
    (tmp_path / "set.zip.part").write_bytes(CONTENT)
    origin = {"address": address, "version": '"one"', "total": len(CONTENT)}
    (tmp_path / "set.zip.part.json").write_text(json.dumps(origin))
    get(address, tmp_path / "set.zip", md5=MD5)
    assert_only(tmp_path / "set.zip")
    assert ranges == []


@pytest.mark.parametrize("note", [None, "{", '{"address": 1}', "[]"])
def test_a_part_without_an_intact_note_restarts(serve, tmp_path, note):
    address, ranges = serve(honest())
    (tmp_path / "set.zip.part").write_bytes(b"something else")
    if note is not None:
        (tmp_path / "set.zip.part.json").write_text(note)
    get(address, tmp_path / "set.zip")
    assert_only(tmp_path / "set.zip")
    assert ranges == [None]


def test_a_changed_file_restarts(serve, tmp_path):
    old = bytes(len(CONTENT))
    address, _ = serve(interrupted(60_000, tag='"old"', content=old), honest(tag='"new"'))
    get(address, tmp_path / "set.zip")
    assert_only(tmp_path / "set.zip")


def test_a_download_restarts_if_the_server_ignores_ranges(serve, tmp_path):
    def full(handler: Handler, offset: int) -> None:
        handler.head(200, len(CONTENT), ETag='"one"')
        handler.wfile.write(CONTENT)

    address, _ = serve(interrupted(60_000), full)
    get(address, tmp_path / "set.zip")
    assert_only(tmp_path / "set.zip")


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_a_download_without_a_strong_version_restarts(serve, tmp_path, tag):
    def cut(handler: Handler, offset: int) -> None:
        handler.head(200, len(CONTENT), **({} if tag is None else {"ETag": tag}))
        handler.wfile.write(CONTENT[:50_000])
        handler.close_connection = True

    address, ranges = serve(cut, honest(tag=tag))
    get(address, tmp_path / "set.zip")
    assert_only(tmp_path / "set.zip")
    assert ranges == [None, None]


@pytest.mark.parametrize(
    "span",
    ["bytes 10-199999/200000", "bytes 60000-199999/300000", "nonsense", ""],
    ids=["place", "size", "word", "none"],
)
def test_a_wrong_byte_range_is_discarded(serve, tmp_path, span):
    def other_part(handler: Handler, offset: int) -> None:
        handler.head(206, 140_000, Content_Range=span, ETag='"one"')
        handler.wfile.write(bytes(140_000))

    address, _ = serve(interrupted(60_000), other_part, honest())
    get(address, tmp_path / "set.zip")
    assert_only(tmp_path / "set.zip")


def test_a_part_longer_than_the_file_restarts(serve, tmp_path):
    address, ranges = serve(interrupted(60_000), status_only(416), honest())
    get(address, tmp_path / "set.zip")
    assert_only(tmp_path / "set.zip")
    assert ranges == [None, "bytes=60000-", None]


@pytest.mark.parametrize("with_length", [True, False])
def test_a_wrong_checksum_is_refused_and_nothing_is_left(serve, tmp_path, with_length):
    def other(handler: Handler, offset: int) -> None:
        handler.head(200, 5 if with_length else None, Connection="close")
        handler.wfile.write(b"other")
        handler.close_connection = True

    address, _ = serve(other)
    wrong = hashlib.md5(b"other").hexdigest()
    with pytest.raises(DmlError, match=rf"the MD5 {wrong}; expected {MD5}\. The download was removed"):
        get(address, tmp_path / "set.zip", md5=MD5)
    assert [*tmp_path.iterdir()] == []


def test_a_response_without_length_is_complete_when_the_connection_closes(serve, tmp_path):
    def until_closed(handler: Handler, offset: int) -> None:
        handler.head(200, None, Connection="close")
        handler.wfile.write(CONTENT)
        handler.close_connection = True

    address, _ = serve(until_closed)
    assert get(address, tmp_path / "set.zip") == SHA256


def test_an_interrupted_chunked_response_restarts(serve, tmp_path):
    def chunked(handler: Handler, offset: int) -> None:
        handler.head(200, None, Transfer_Encoding="chunked")
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(CONTENT), CONTENT[:1000]))
        handler.close_connection = True

    address, _ = serve(chunked, honest())
    get(address, tmp_path / "set.zip")
    assert_only(tmp_path / "set.zip")


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_refused_request_is_not_repeated(serve, tmp_path, status):
    address, ranges = serve(status_only(status))
    with pytest.raises(DmlError, match=rf"the server answers {status} .*docs/guide/data\.md"):
        get(address, tmp_path / "set.zip")
    assert len(ranges) == 1


def test_a_temporary_server_error_is_retried(serve, tmp_path):
    address, ranges = serve(status_only(503), status_only(500), honest())
    get(address, tmp_path / "set.zip", tries=3)
    assert_only(tmp_path / "set.zip")
    assert len(ranges) == 3


def test_an_unreachable_server_is_reported(tmp_path, serve):
    address, _ = serve(honest())
    port = address.rpartition(":")[2].partition("/")[0]
    with pytest.raises(DmlError, match=r"can't download .*: .*, 2 times without progress"):
        get(address.replace(port, "1"), tmp_path / "set.zip", tries=2)


def test_a_redirection_is_followed(serve, tmp_path):
    address, _ = serve(honest())
    elsewhere, _ = serve(status_only(302, Location=address))
    get(elsewhere, tmp_path / "set.zip", md5=MD5)
    assert_only(tmp_path / "set.zip")


def test_a_missing_folder_is_reported(serve, tmp_path):
    address, _ = serve(honest())
    with pytest.raises(DmlError, match=r"can't write .*set\.zip\.part: No such file or directory"):
        get(address, tmp_path / "nowhere" / "set.zip")


def test_a_server_that_sends_the_wrong_range_again_and_again_is_given_up(serve, tmp_path):
    """Each restart receives bytes anew, but never more than before."""

    def early(handler: Handler, offset: int) -> None:
        if offset:
            begin = max(0, offset - 50)
            span = f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}"
            handler.head(206, len(CONTENT) - begin, Content_Range=span, ETag='"one"')
        else:
            handler.head(200, len(CONTENT), ETag='"one"')
        handler.wfile.write(CONTENT[offset : offset + 5000])
        handler.close_connection = True

    address, ranges = serve(early)
    with pytest.raises(DmlError, match="times without progress"):
        get(address, tmp_path / "file", tries=3)
    assert len(ranges) < 12


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "data:,text",
        "ftp://host/file",
        "http://",
        "http:///file",
        "https://host:port/file",
        "http://[::1/file",
        "http://ho st/file",
        "http://host/\n",
        "host/file",
        "",
    ],
)
def test_only_addresses_of_http_and_https_are_taken(tmp_path, address):
    with pytest.raises(DmlError, match=r"can't download .*: expected an address like https://host/file"):
        get(address, tmp_path / "file")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["ftp://localhost/file", "file:///etc/passwd"])
def test_a_redirection_to_another_kind_of_address_is_refused(serve, tmp_path, target):
    address, _ = serve(status_only(302, Location=target))
    with pytest.raises(DmlError):
        get(address, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_clock_that_jumps_changes_neither_timeouts_nor_tries(serve, tmp_path, monkeypatch):
    address, ranges = serve(stalled(100_000), interrupted(50_000), honest())
    draw = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: draw.uniform(0, 4e9))
    assert download(address, tmp_path / "file", md5=MD5, timeout=0.3, tries=2, pause=0.0) == SHA256
    assert len(ranges) == 3
