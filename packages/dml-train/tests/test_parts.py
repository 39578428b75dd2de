"""Parts of a checkpoint: rows can be divided in any way, torch can read the format, and loading
can't run code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import warnings
from itertools import pairwise

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as torch_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core import DmlError
from dml_train.ranks.parts import OwnRows, Parts, part_name, write_part
from dml_train.training.checkpoint import (
    MANIFEST,
    PARTS,
    STATE,
    corrupt,
    fault,
    newest_intact,
    write,
)


def place(tensor):
    return torch.empty_like(tensor, device="meta")


def divide(folder, tensors, bounds):
    """Write tensors in parts that begin with these rows."""
    ranks = len(bounds) - 1
    for rank, (first, last) in enumerate(pairwise(bounds)):
        rows = {name: OwnRows(tensor[first:last], first) for name, tensor in tensors.items()}
        record = write_part(folder / part_name(rank, ranks), rows)
        content = (folder / part_name(rank, ranks)).read_bytes()
        assert record == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@settings(max_examples=60)
@given(
    cuts=st.lists(st.integers(0, 9), max_size=3),
    asked=st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted),
    columns=st.integers(1, 3),
)
def test_any_rows_are_read_back_from_any_division(tmp_path_factory, cuts, asked, columns):
    folder = tmp_path_factory.mktemp("parts")
    whole = torch.arange(9.0 * columns).reshape(9, columns)
    tensors = {
        "loss/w": whole,
        "optimizer/half": whole.bfloat16() + 0.5,
        "optimizer/double": whole.double() / 3,
        "optimizer/count": whole[:, 0].long(),  # a number per row
    }
    divide(folder, tensors, [0, *sorted(cuts), 9])
    parts, (first, last) = Parts(folder), asked
    for name, tensor in tensors.items():
        rows = parts.read(name, place(tensor), first, last)
        assert rows.dtype == tensor.dtype
        assert torch.equal(rows, tensor[first:last])


def test_torch_and_safetensors_read_the_parts(tmp_path):
    whole = torch.randn(7, 3)
    divide(tmp_path, {"loss/w": whole, "optimizer/half": whole.half()}, [0, 3, 7])
    one = safetensors.torch.load_file(tmp_path / part_name(1, 2))
    assert torch.equal(one["loss/w"], whole[3:])
    read = {"loss/w": torch.empty(7, 3), "optimizer/half": torch.empty(7, 3).half()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it found only a single process
        reader = torch_checkpoint.HuggingFaceStorageReader(str(tmp_path))
        torch_checkpoint.load(read, storage_reader=reader)
    assert torch.equal(read["loss/w"], whole)
    assert torch.equal(read["optimizer/half"], whole.half())


def change_header(change):
    def damage(file):
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return damage


DAMAGE = {
    "missing": lambda file: file.unlink(),
    "halved": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size - 5]),
    "foreign": lambda file: safetensors.torch.save_file({"loss/w": torch.zeros(4, 3)}, file),
    "doubled": lambda file: shutil.copy(file, file.with_name(f"again{file.suffix}")),
    "other dtype": change_header(lambda header: header["loss/w"].update(dtype="I32")),
    "other columns": change_header(lambda header: header["loss/w"].update(shape=[3, 4])),
    "no tensor": change_header(lambda header: header.pop("loss/w")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_whose_checksum_is_right_is_one_message(tmp_path, damage):
    whole = torch.randn(7, 3)
    divide(tmp_path, {"loss/w": whole}, [0, 3, 7])
    DAMAGE[damage](tmp_path / part_name(1, 2))
    with pytest.raises(DmlError) as caught:
        Parts(tmp_path).read("loss/w", place(whole), 0, 7)
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) < 600


def save(folder, step):
    rows = torch.full((6, 2), float(step))
    state = {"loss": {"w": place(rows)}, "best": {"step": 0}}
    return write(folder, step, {"a": torch.zeros(2)}, state, {"loss/w": OwnRows(rows, 0)})


def test_a_checkpoint_in_parts_is_read_back(tmp_path):
    written = save(tmp_path, 3)
    assert newest_intact(tmp_path) == written
    assert sorted(str(path.relative_to(written.path)) for path in written.path.rglob("*.*")) == [
        MANIFEST,
        "model.safetensors",
        f"{PARTS}/{part_name(0, 1)}",
        STATE,
    ]
    stored = written.state()["loss"]["w"]
    assert stored.is_meta
    assert torch.equal(written.parts().read("loss/w", stored, 2, 4), torch.full((2, 2), 3.0))
    assert written.best_step() == 0


FAULTS = {
    "a missing part": lambda path: (path / PARTS / part_name(0, 1)).unlink(),
    "a missing state": lambda path: (path / STATE).unlink(),
    "a changed byte": lambda path: flip_last(path / PARTS / part_name(0, 1)),
    "a part of another run": lambda path: (
        path / PARTS / "rank-00001-of-00002.safetensors"
    ).write_bytes(b""),
    "a file elsewhere": lambda path: rename_in_manifest(path, "../../../etc/passwd"),
    "a path as name": lambda path: rename_in_manifest(path, f"{PARTS}/../x.safetensors"),
}


def flip_last(file):
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def rename_in_manifest(path, name):
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][name] = manifest["files"].pop(f"{PARTS}/{part_name(0, 1)}")
    (path / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("wrong", FAULTS)
def test_with_damaged_parts_the_older_checkpoint_is_used(tmp_path, wrong):
    older, newer = save(tmp_path, 1), save(tmp_path, 2)
    FAULTS[wrong](newer.path)
    assert fault(newer.path) is not None
    assert list(corrupt(tmp_path)) == [newer.path]
    assert newest_intact(tmp_path) == older


@pytest.mark.parametrize("limit", [50_000, 500])
def test_a_refused_part_keeps_the_previous_checkpoint(tmp_path, small_files, limit):
    save(tmp_path, 1)
    rows = torch.zeros(6, 20_000)
    state = {"loss": {"w": place(rows)}}
    with (
        small_files(limit),
        pytest.raises(DmlError, match=r"step 2 .*the checkpoint of step 1 .* is intact"),
    ):
        write(tmp_path, 2, {"a": torch.zeros(2)}, state, {"loss/w": OwnRows(rows, 0)})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


MEASURE = """
import resource, sys, torch
from pathlib import Path
from dml_train.ranks.parts import OwnRows
from dml_train.ranks.parts import Parts, part_name, write_part

folder, whole = Path(sys.argv[1]), torch.ones(200_000, 64)
place = torch.empty_like(whole, device="meta")
write_part(folder / part_name(0, 2), {"w": OwnRows(whole[:1000], 0)})

def growth(act):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    act()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

print(growth(lambda: write_part(folder / part_name(1, 2), {"w": OwnRows(whole[1000:], 1000)})))
print(growth(lambda: Parts(folder).read("w", place, 150_000, 160_000)))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_writing_copies_no_rows_and_reading_allocates_only_its_own(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    writing, reading = map(int, result.stdout.split())
    assert writing < 10_000  # KiB; 48 MiB are written
    assert reading < 10_000  # 2.4 MiB are read
