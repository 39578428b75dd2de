"""Downloads from a server, on this machine, that stalls, breaks off and lies."""

from __future__ import annotations

import hashlib
import json
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

Answer = Callable[["Handler", int], None]


class Handler(BaseHTTPRequestHandler):
    """Answers the n-th request by the n-th of the server's answers, and all further ones by the last."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        number = len(server.asked)
        server.asked.append(self.headers.get("Range"))
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
    """All that a good server does."""

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


def breaks_off(after: int, tag: str = '"one"', content: bytes = CONTENT) -> Answer:
    """Says the whole length, and closes the connection earlier; of a part, too."""

    def answer(handler: Handler, offset: int) -> None:
        if offset:
            span = f"bytes {offset}-{len(content) - 1}/{len(content)}"
            handler.head(206, len(content) - offset, Content_Range=span, ETag=tag)
        else:
            handler.head(200, len(content), ETag=tag)
        handler.wfile.write(content[offset : offset + after])
        handler.close_connection = True

    return answer


def stalls(after: int) -> Answer:
    def answer(handler: Handler, offset: int) -> None:
        handler.head(200, len(CONTENT), ETag='"one"')
        handler.wfile.write(CONTENT[:after])
        handler.wfile.flush()
        handler.server.over.wait(120)
        handler.close_connection = True

    return answer


def says(status: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: Handler, offset: int) -> None:
        handler.head(status, len(body), **headers)
        handler.wfile.write(body)

    return answer


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[..., tuple[str, list[str | None]]]]:
    """Start a server with these answers; its address, and the ranges that it was asked for."""
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(*answers: Answer) -> tuple[str, list[str | None]]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.answers, server.asked, server.over = answers, [], threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/set.zip", server.asked

    yield start
    for server in servers:
        server.over.set()
        server.shutdown()
        server.server_close()


def get(address: str, file: Path, **options) -> str:
    return download(address, file, **{"timeout": 60.0, "pause": 0.0} | options)


def only(file: Path) -> None:
    """The whole file is there, and nothing else."""
    assert file.read_bytes() == CONTENT
    assert [*file.parent.iterdir()] == [file]


def test_a_good_server_needs_one_request(serve, tmp_path):
    address, asked = serve(honest())
    seen = []
    sha256 = get(
        address, tmp_path / "set.zip", md5=MD5, progress=lambda have, total: seen.append((have, total))
    )
    assert sha256 == SHA256
    only(tmp_path / "set.zip")
    assert asked == [None]
    assert seen[-1] == (200_000, 200_000)


def test_a_connection_that_stalls_is_given_up_and_gone_on_with(serve, tmp_path):
    address, asked = serve(stalls(70_000), honest())
    get(address, tmp_path / "set.zip", timeout=3.0)  # as long as a busy machine may need for an answer
    only(tmp_path / "set.zip")
    assert asked[:2] == [None, "bytes=70000-"]  # more, where an honest answer, too, took too long


def test_a_server_that_breaks_off_is_asked_for_the_rest_until_all_is_there(serve, tmp_path):
    address, asked = serve(breaks_off(60_000))
    get(address, tmp_path / "set.zip", md5=MD5, tries=2)
    only(tmp_path / "set.zip")
    assert asked == [None, "bytes=60000-", "bytes=120000-", "bytes=180000-"]


def test_a_server_that_never_gets_on_is_given_up_and_what_came_is_kept(serve, tmp_path):
    address, asked = serve(breaks_off(60_000), breaks_off(0))
    with pytest.raises(
        DmlError, match=r"closed the connection .*, 3 times without progress; 60,000 bytes are kept"
    ):
        get(address, tmp_path / "set.zip", tries=3)
    assert len(asked) == 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["set.zip.part", "set.zip.part.json"]


def test_a_later_call_goes_on_where_an_earlier_one_ended(serve, tmp_path):
    address, asked = serve(breaks_off(60_000), breaks_off(0), honest())
    with pytest.raises(DmlError):
        get(address, tmp_path / "set.zip", tries=1)
    get(address, tmp_path / "set.zip", md5=MD5)
    only(tmp_path / "set.zip")
    assert asked[-1] == "bytes=60000-"


def test_a_part_that_was_whole_but_not_renamed_needs_no_request(serve, tmp_path):
    address, asked = serve(says(404))
    (tmp_path / "set.zip.part").write_bytes(CONTENT)
    origin = {"address": address, "version": '"one"', "total": len(CONTENT)}
    (tmp_path / "set.zip.part.json").write_text(json.dumps(origin))
    get(address, tmp_path / "set.zip", md5=MD5)
    only(tmp_path / "set.zip")
    assert asked == []


@pytest.mark.parametrize("note", [None, "{", '{"address": 1}', "[]"])
def test_a_part_without_a_whole_note_is_begun_anew(serve, tmp_path, note):
    address, asked = serve(honest())
    (tmp_path / "set.zip.part").write_bytes(b"something else")
    if note is not None:
        (tmp_path / "set.zip.part.json").write_text(note)
    get(address, tmp_path / "set.zip")
    only(tmp_path / "set.zip")
    assert asked == [None]


def test_a_file_that_has_changed_is_begun_anew(serve, tmp_path):
    old = bytes(len(CONTENT))
    address, _ = serve(breaks_off(60_000, tag='"old"', content=old), honest(tag='"new"'))
    get(address, tmp_path / "set.zip")
    only(tmp_path / "set.zip")


def test_a_server_that_cannot_send_parts_is_asked_for_the_whole_again(serve, tmp_path):
    def whole(handler: Handler, offset: int) -> None:
        handler.head(200, len(CONTENT), ETag='"one"')
        handler.wfile.write(CONTENT)

    address, _ = serve(breaks_off(60_000), whole)
    get(address, tmp_path / "set.zip")
    only(tmp_path / "set.zip")


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_without_a_sure_sign_of_its_version_no_part_is_gone_on_with(serve, tmp_path, tag):
    def cut(handler: Handler, offset: int) -> None:
        handler.head(200, len(CONTENT), **({} if tag is None else {"ETag": tag}))
        handler.wfile.write(CONTENT[:50_000])
        handler.close_connection = True

    address, asked = serve(cut, honest(tag=tag))
    get(address, tmp_path / "set.zip")
    only(tmp_path / "set.zip")
    assert asked == [None, None]


@pytest.mark.parametrize(
    "span",
    ["bytes 10-199999/200000", "bytes 60000-199999/300000", "nonsense", ""],
    ids=["place", "size", "word", "none"],
)
def test_a_part_that_is_not_the_one_asked_for_is_not_added(serve, tmp_path, span):
    def other_part(handler: Handler, offset: int) -> None:
        handler.head(206, 140_000, Content_Range=span, ETag='"one"')
        handler.wfile.write(bytes(140_000))

    address, _ = serve(breaks_off(60_000), other_part, honest())
    get(address, tmp_path / "set.zip")
    only(tmp_path / "set.zip")


def test_a_part_longer_than_the_file_is_begun_anew(serve, tmp_path):
    address, asked = serve(breaks_off(60_000), says(416), honest())
    get(address, tmp_path / "set.zip")
    only(tmp_path / "set.zip")
    assert asked == [None, "bytes=60000-", None]


@pytest.mark.parametrize("with_length", [True, False])
def test_another_checksum_is_refused_and_nothing_is_left(serve, tmp_path, with_length):
    def other(handler: Handler, offset: int) -> None:
        handler.head(200, 5 if with_length else None, Connection="close")
        handler.wfile.write(b"other")
        handler.close_connection = True

    address, _ = serve(other)
    wrong = hashlib.md5(b"other").hexdigest()
    with pytest.raises(DmlError, match=rf"MD5 is {wrong}, where {MD5} is known; it was removed"):
        get(address, tmp_path / "set.zip", md5=MD5)
    assert [*tmp_path.iterdir()] == []


def test_a_server_that_sends_no_length_is_believed_at_the_end(serve, tmp_path):
    def until_closed(handler: Handler, offset: int) -> None:
        handler.head(200, None, Connection="close")
        handler.wfile.write(CONTENT)
        handler.close_connection = True

    address, _ = serve(until_closed)
    assert get(address, tmp_path / "set.zip") == SHA256


def test_chunks_that_break_off_are_noticed(serve, tmp_path):
    def chunked(handler: Handler, offset: int) -> None:
        handler.head(200, None, Transfer_Encoding="chunked")
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(CONTENT), CONTENT[:1000]))
        handler.close_connection = True

    address, _ = serve(chunked, honest())
    get(address, tmp_path / "set.zip")
    only(tmp_path / "set.zip")


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_refusal_is_told_at_once(serve, tmp_path, status):
    address, asked = serve(says(status))
    with pytest.raises(DmlError, match=rf"the server answers {status} .*docs/guide/data\.md"):
        get(address, tmp_path / "set.zip")
    assert len(asked) == 1


def test_a_passing_fault_of_the_server_is_waited_out(serve, tmp_path):
    address, asked = serve(says(503), says(500), honest())
    get(address, tmp_path / "set.zip", tries=3)
    only(tmp_path / "set.zip")
    assert len(asked) == 3


def test_no_server_at_all_is_told(tmp_path, serve):
    address, _ = serve(honest())
    port = address.rpartition(":")[2].partition("/")[0]
    with pytest.raises(DmlError, match=r"can't download .*: .*, 2 times without progress"):
        get(address.replace(port, "1"), tmp_path / "set.zip", tries=2)


def test_a_redirection_is_followed(serve, tmp_path):
    address, _ = serve(honest())
    elsewhere, _ = serve(says(302, Location=address))
    get(elsewhere, tmp_path / "set.zip", md5=MD5)
    only(tmp_path / "set.zip")


def test_a_folder_that_is_not_there_is_told(serve, tmp_path):
    address, _ = serve(honest())
    with pytest.raises(DmlError, match=r"can't write .*set\.zip\.part: No such file or directory"):
        get(address, tmp_path / "nowhere" / "set.zip")
