"""Downloads and archives must be complete, or leave no file; archives can't write outside the
folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dml_core import DmlError
from dml_train.data.published.fetching import download, unpack

CONTENT = bytes(i * 7 % 251 for i in range(200_000))
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize("md5", [MD5, None])
@pytest.mark.parametrize(
    "answer",
    [{}, {"announces_length": False}, {"status": 302}],
    ids=["whole", "of unknown length", "moved"],
)
def test_a_complete_file_gets_its_name(serve, tmp_path, answer, md5):
    assert download(serve(CONTENT, **answer), tmp_path / "new" / "set.zip", md5=md5) == SHA256
    assert [(f.name, f.read_bytes()) for f in (tmp_path / "new").iterdir()] == [
        ("set.zip", CONTENT)
    ]


@pytest.mark.parametrize(
    ("answer", "md5", "message"),
    [
        ({"sent": 1000}, None, "can't download"),
        ({}, "0" * 32, f"has MD5 {MD5}; expected 000"),
        *(({"status": n}, None, f"can't download .*{n}") for n in (403, 404, 500)),
    ],
    ids=["interrupted", "wrong checksum", "403", "404", "500"],
)
def test_a_failed_download_is_an_error_and_leaves_nothing(serve, tmp_path, answer, md5, message):
    with pytest.raises(DmlError, match=message):
        download(serve(CONTENT, **answer), tmp_path / "set.zip", md5=md5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/set.zip", "file:///etc/passwd", "set.zip"])
def test_an_address_that_no_server_answers_is_an_error(tmp_path, address):
    with pytest.raises(DmlError, match="can't download"):
        download(address, tmp_path / "set.zip")


def test_a_folder_that_cannot_be_written_is_an_error(serve, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DmlError, match="can't write"):
        download(serve(CONTENT), tmp_path / "file" / "set.zip")


def as_zip(folder: Path, contents: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return folder / "set.zip"


def as_tar(folder: Path, contents: Mapping[str, bytes], kind: str = "") -> Path:
    with tarfile.open(folder / f"set.tar{kind and f'.{kind}'}", f"w:{kind}") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return folder / f"set.tar{kind and f'.{kind}'}"


def as_tgz(folder: Path, contents: Mapping[str, bytes]) -> Path:
    return as_tar(folder, contents, "gz")


Pack = Callable[[Path, Mapping[str, bytes]], Path]
every_kind = pytest.mark.parametrize("pack", [as_zip, as_tar, as_tgz])
CONTENTS = {
    "birds/im é-/1.jpg": bytes(range(256)) * 40,
    "birds/images.txt": b"1 1.jpg\n",
    "note.txt": b"",
}


def found(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@every_kind
def test_unpacking_restores_the_packed_files_also_after_an_earlier_one_was_killed(tmp_path, pack):
    archive = pack(tmp_path, CONTENTS)
    half = tmp_path / "out" / f".{archive.name}.unpacking" / "birds"
    half.mkdir(parents=True)
    (half / "half.jpg").write_bytes(b"half")
    entries = unpack(archive, tmp_path / "out")
    assert entries == [tmp_path / "out" / "birds", tmp_path / "out" / "note.txt"]
    assert found(tmp_path / "out") == CONTENTS


@every_kind
@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/tmp/dml-out.txt"])
def test_nothing_is_written_outside_the_folder(tmp_path, pack, name):
    archive = pack(tmp_path, {"a/fine.txt": b"fine", name: b"out"})
    with contextlib.suppress(DmlError):  # a tar raises an error; a zip's files are kept inside
        unpack(archive, tmp_path / "deep" / "out")
    inside = {"a/fine.txt", "tmp/dml-out.txt", "out.txt", "a/out.txt"}
    assert found(tmp_path / "deep" / "out").keys() <= inside
    assert {file.name for file in tmp_path.iterdir()} == {archive.name, "deep"}
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["out"]
    assert not Path("/tmp/dml-out.txt").exists()


def linking(kind: bytes) -> Callable[[Path], Path]:
    def pack(folder: Path) -> Path:
        with tarfile.open(folder / "set.tar", "w") as archive:
            info = tarfile.TarInfo("birds")
            info.type, info.linkname = kind, "/etc"
            archive.addfile(info)
        return folder / "set.tar"

    return pack


def truncated(pack: Pack, share: float) -> Callable[[Path], Path]:
    def cut(folder: Path) -> Path:
        archive = pack(
            folder, {f"birds/{i}.jpg": bytes(i * k % 256 for k in range(20_000)) for i in range(5)}
        )
        archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * share)])
        return archive

    return cut


def patched(*patches: tuple[bytes, int, bytes]) -> Callable[[Path], Path]:
    """Pack a zip file, then apply patches: a signature to find, an offset from it, and the bytes to
    write there.
    """

    def patch(folder: Path) -> Path:
        archive = as_zip(folder, {"a.txt": bytes(range(256)) * 40})
        content = bytearray(archive.read_bytes())
        for signature, offset, new in patches:
            place = content.index(signature) + offset
            content[place : place + len(new)] = new
        archive.write_bytes(content)
        return archive

    return patch


def web_page(folder: Path) -> Path:
    (folder / "set.zip").write_text("<!DOCTYPE html><html>Please log in</html>")
    return folder / "set.zip"


ENTRY, DIRECTORY = b"PK\x03\x04", b"PK\x01\x02"  # a zip's signatures
BAD: dict[str, Callable[[Path], Path]] = {
    **{
        f"{pack.__name__} to {n:.0%}": truncated(pack, n)
        for pack in (as_zip, as_tar, as_tgz)
        for n in (0.3, 0.9)
    },
    **{
        f"{pack.__name__}, a file that is a folder": lambda folder, pack=pack: pack(
            folder, {"a": b"1", "a/b": b"2"}
        )
        for pack in (as_zip, as_tar, as_tgz)
    },
    "link": linking(tarfile.SYMTYPE),
    "hard link": linking(tarfile.LNKTYPE),
    "pipe": linking(tarfile.FIFOTYPE),
    "device": linking(tarfile.CHRTYPE),
    "damaged": patched((ENTRY, 45, bytes(10))),
    "password": patched((ENTRY, 6, b"\x01"), (DIRECTORY, 8, b"\x01")),
    "unknown method": patched((ENTRY, 8, b"\x62\x00"), (DIRECTORY, 10, b"\x62\x00")),
    "web page": web_page,
    "missing": lambda folder: folder / "set.zip",
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_a_bad_archive_is_named_and_nothing_of_it_is_left(tmp_path, make):
    archive = make(tmp_path)
    message = rf"can't unpack .*{archive.name}.*; nothing was unpacked.*web page.*password"
    with pytest.raises(DmlError, match=message):
        unpack(archive, tmp_path / "out")
    assert [*(tmp_path / "out").rglob("*")] == []


@every_kind
def test_existing_files_are_never_overwritten(tmp_path, pack):
    archive = pack(tmp_path, CONTENTS)
    (tmp_path / "out" / "birds").mkdir(parents=True)
    (tmp_path / "out" / "birds" / "mine.txt").write_bytes(b"mine")
    with pytest.raises(DmlError, match=r"birds already exists; it was not changed"):
        unpack(archive, tmp_path / "out")
    assert found(tmp_path / "out") == {"birds/mine.txt": b"mine"}


def test_the_folder_that_macos_adds_is_omitted(tmp_path):
    archive = as_zip(tmp_path, {"a/1.txt": b"1", "__MACOSX/a/._1.txt": b"x"})
    unpack(archive, tmp_path / "out")
    assert found(tmp_path / "out") == {"a/1.txt": b"1"}
