"""Archives are unpacked completely or not at all, and only into their folder."""

from __future__ import annotations

import contextlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dml_core import DmlError
from dml_train.data.published.unpacking import unpack

Pack = Callable[[Path, Mapping[str, bytes]], Path]


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


every_kind = pytest.mark.parametrize("pack", [as_zip, as_tar, as_tgz])
CONTENTS = {"birds/images/1.jpg": bytes(range(256)) * 40, "birds/images.txt": b"1 1.jpg\n", "note.txt": b""}


def found(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@every_kind
def test_unpacking_restores_the_packed_files(tmp_path, pack):
    archive = pack(tmp_path, CONTENTS)
    entries = unpack(archive, tmp_path / "out")
    assert entries == [tmp_path / "out" / "birds", tmp_path / "out" / "note.txt"]
    assert found(tmp_path / "out") == CONTENTS


@settings(max_examples=30)
@given(
    contents=st.dictionaries(
        st.lists(st.text("abé .-", min_size=1, max_size=5).filter(lambda n: n.strip(". ")), min_size=1, max_size=3)
        .map("/".join),
        st.binary(max_size=50),
        max_size=5,
    ),
    pack=st.sampled_from([as_zip, as_tar, as_tgz]),
)  # fmt: skip
def test_unpacking_restores_any_packed_files(tmp_path_factory, contents, pack):
    assume(not any(other.startswith(f"{name}/") for name in contents for other in contents))
    folder = tmp_path_factory.mktemp("any")
    unpack(pack(folder, contents), folder / "out")
    assert found(folder / "out") == contents


@every_kind
def test_a_name_of_both_a_file_and_a_folder_is_refused_and_nothing_is_left(tmp_path, pack):
    archive = pack(tmp_path, {"a": b"1", "a/b": b"2"})
    with pytest.raises(DmlError, match="can't unpack"):
        unpack(archive, tmp_path / "out")
    assert found(tmp_path / "out") == {}


@every_kind
@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/tmp/dml-out.txt"])
def test_nothing_is_written_outside_the_folder(tmp_path, pack, name):
    archive = pack(tmp_path, {"a/fine.txt": b"fine", name: b"out"})
    with contextlib.suppress(DmlError):  # of a tar; a zip's files stay inside
        unpack(archive, tmp_path / "deep" / "out")
    assert found(tmp_path / "deep" / "out").keys() <= {
        "a/fine.txt",
        "tmp/dml-out.txt",
        "out.txt",
        "a/out.txt",
    }
    assert {file.name for file in tmp_path.iterdir()} == {archive.name, "deep"}
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["out"]
    assert not Path("/tmp/dml-out.txt").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_tar_of_devices_or_links_that_lead_out_is_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        info = tarfile.TarInfo("birds")
        info.type, info.linkname = kind, "/etc"
        archive.addfile(info)
    with pytest.raises(DmlError, match="nothing was unpacked"):
        unpack(tmp_path / "set.tar", tmp_path / "out")
    assert found(tmp_path / "out") == {}


@every_kind
@pytest.mark.parametrize("share", [0.3, 0.7, 0.9])
def test_a_truncated_archive_is_refused_and_nothing_is_left(tmp_path, pack, share):
    archive = pack(tmp_path, {f"birds/{i}.jpg": bytes(i * k % 256 for k in range(20_000)) for i in range(5)})
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DmlError, match="nothing was unpacked"):
        unpack(archive, tmp_path / "out")
    assert [*(tmp_path / "out").rglob("*")] == []


def test_a_zip_with_damaged_content_is_refused(tmp_path):
    archive = as_zip(tmp_path, CONTENTS)
    content = bytearray(archive.read_bytes())
    content[60:70] = bytes(10)
    archive.write_bytes(content)
    with pytest.raises(DmlError, match="nothing was unpacked"):
        unpack(archive, tmp_path / "out")


def test_a_zip_with_a_password_is_refused(tmp_path):
    archive = as_zip(tmp_path, {"a.txt": b"secret"})
    content = bytearray(archive.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[6] |= 1
    content[directory + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(DmlError, match="password"):
        unpack(archive, tmp_path / "out")


def test_a_web_page_instead_of_an_archive_is_recognised(tmp_path):
    (tmp_path / "set.zip").write_text("<!DOCTYPE html><html>Please log in</html>")
    with pytest.raises(DmlError, match="or a web page"):
        unpack(tmp_path / "set.zip", tmp_path / "out")


@every_kind
def test_existing_files_are_never_overwritten(tmp_path, pack):
    archive = pack(tmp_path, CONTENTS)
    (tmp_path / "out" / "birds").mkdir(parents=True)
    (tmp_path / "out" / "birds" / "mine.txt").write_bytes(b"mine")
    with pytest.raises(DmlError, match=r"birds already exists; nothing was unpacked"):
        unpack(archive, tmp_path / "out")
    assert found(tmp_path / "out") == {"birds/mine.txt": b"mine"}


def test_files_added_by_macos_are_omitted(tmp_path):
    archive = as_zip(tmp_path, {"a/1.txt": b"1", "__MACOSX/a/._1.txt": b"x", "a/.DS_Store": b"x"})
    unpack(archive, tmp_path / "out")
    assert found(tmp_path / "out") == {"a/1.txt": b"1"}


def test_a_killed_unpacking_restarts(tmp_path):
    archive = as_zip(tmp_path, CONTENTS)
    half = tmp_path / "out" / ".set.zip.unpacking" / "birds"
    half.mkdir(parents=True)
    (half / "half.jpg").write_bytes(b"half")
    unpack(archive, tmp_path / "out")
    assert found(tmp_path / "out") == CONTENTS


def test_a_missing_archive_is_named(tmp_path):
    with pytest.raises(DmlError, match=r"can't unpack .*set\.zip"):
        unpack(tmp_path / "set.zip", tmp_path / "out")


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2"])
def test_one_flipped_bit_anywhere_in_a_compressed_tar_is_found(tmp_path, kind):
    random = np.random.default_rng(0)
    contents = {f"images/{i}.jpg": random.bytes(2000) for i in range(5)}
    archive = as_tar(tmp_path, contents, kind)
    intact = archive.read_bytes()
    for place in random.integers(10, len(intact), size=40).tolist():
        damaged = bytearray(intact)
        damaged[place] ^= 1 << (place % 8)
        archive.write_bytes(damaged)
        out = tmp_path / f"out-{place}"
        try:
            unpack(archive, out)
        except DmlError:
            assert not out.exists() or not list(out.iterdir())
        else:  # a bit that no data depends on, as in gzip's header
            assert found(out) == contents


def test_a_zip_of_an_unknown_method_is_refused(tmp_path):
    archive = as_zip(tmp_path, CONTENTS)
    content = archive.read_bytes()
    deflated, unknown = (8).to_bytes(2, "little"), (98).to_bytes(2, "little")
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = 0
        while (place := content.find(signature, place)) >= 0:
            where = place + offset
            if content[where : where + 2] == deflated:
                content = content[:where] + unknown + content[where + 2 :]
            place += 4
    archive.write_bytes(content)
    with pytest.raises(DmlError, match="nothing was unpacked"):
        unpack(archive, tmp_path / "out")
    assert not found(tmp_path / "out")
