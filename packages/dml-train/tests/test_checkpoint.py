"""Checkpoints: complete or absent, checked for corruption; code must not be executed on loading."""

from __future__ import annotations

import errno
import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core import DmlError
from dml_train.training import checkpoint
from dml_train.training.checkpoint import (
    MANIFEST,
    STATE,
    WEIGHTS,
    corrupt,
    fault,
    intact,
    newest_intact,
    prune,
    write,
)


def save(folder, step):
    shared = torch.full((3,), float(step))
    return write(
        folder,
        step,
        {"a": shared, "b": shared},
        {"optimizer": {"state": {0: torch.arange(4)}, "lr": 0.1}},
    )


def test_a_written_checkpoint_is_read_back(tmp_path):
    written = save(tmp_path, 7)
    assert newest_intact(tmp_path) == written
    assert {name: tensor.tolist() for name, tensor in written.weights().items()} == {
        "a": [7.0] * 3,
        "b": [7.0] * 3,
    }
    state = written.state()
    assert state["optimizer"]["lr"] == 0.1
    assert torch.equal(state["optimizer"]["state"][0], torch.arange(4))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000007"]


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from([WEIGHTS, STATE, MANIFEST]))
def test_any_changed_or_missing_byte_is_detected(tmp_path_factory, data, name):
    folder = tmp_path_factory.mktemp("checkpoints")
    path = save(folder, 1).path / name
    content = path.read_bytes()
    place = data.draw(
        st.integers(0, len(content) - 3)
    )  # not the manifest's last brace and line end
    if data.draw(st.booleans()):
        path.write_bytes(content[:place])
    elif name == MANIFEST:
        path.unlink()
    else:
        changed = bytes([content[place] ^ 1 << data.draw(st.integers(0, 7))])
        path.write_bytes(content[:place] + changed + content[place + 1 :])
    assert fault(path.parent) is not None
    assert newest_intact(folder) is None


texts = st.text(max_size=3)
trees = st.recursive(
    texts | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda items: (
        st.lists(items, max_size=4)
        | st.lists(items, max_size=4).map(tuple)
        | st.dictionaries(texts | st.integers(), items, max_size=4)
    ),
)


def unshared(value):
    """Rebuild a tree so that objects do not occur twice, as far as Python allows."""
    if isinstance(value, str):
        return "".join(list(value))  # a new string, unless it has fewer than 2 characters
    if isinstance(value, dict):
        return {unshared(key): unshared(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(unshared, value))
    return value


@settings(max_examples=30)
@given(tree=trees)
def test_equal_states_are_equal_bytes_whichever_objects_they_share(tmp_path_factory, tree):
    """Pickle stores a repeated object as a reference, but a loaded state may share other objects
    than the saved one.
    """
    folder = tmp_path_factory.mktemp("checkpoints")
    shared = {"first": tree, "again": tree}
    one = write(folder / "shared", 1, {}, shared)
    other = write(folder / "apart", 1, {}, unshared(shared))
    loaded = write(folder / "loaded", 1, {}, one.state())
    assert one.state() == shared
    assert (one.path / STATE).read_bytes() == (other.path / STATE).read_bytes()
    assert (one.path / STATE).read_bytes() == (loaded.path / STATE).read_bytes()


def test_the_newest_intact_checkpoint_before_corrupt_ones_is_used(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    size = (tmp_path / "step-00000002" / STATE).stat().st_size
    (tmp_path / "step-00000003" / WEIGHTS).unlink()
    (tmp_path / "step-00000002" / STATE).write_bytes(b"")
    assert newest_intact(tmp_path).step == 1
    assert [(path.name, wrong) for path, wrong in corrupt(tmp_path).items()] == [
        ("step-00000003", f"{WEIGHTS} is missing"),
        (
            "step-00000002",
            f"{STATE} has 0 bytes; the manifest says {size}",
        ),
    ]
    assert save(tmp_path, 3) == newest_intact(tmp_path)


def test_an_unreadable_checkpoint_is_skipped_and_one_without_permission_raises(
    tmp_path, monkeypatch
):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "step-00000003").write_text("no folder")
    errors = {"step-00000002": OSError(errno.EIO, "Input/output error")}

    def read(file, algorithm):
        if (name := Path(file.name).parent.name) in errors:
            raise errors[name]
        return digest(file, algorithm)

    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", read)
    assert newest_intact(tmp_path).step == 1
    assert corrupt(tmp_path) == {
        tmp_path / "step-00000002": "reading it failed: Input/output error"
    }
    errors["step-00000002"] = PermissionError(errno.EACCES, "Permission denied")
    with pytest.raises(PermissionError):
        newest_intact(tmp_path)


def test_a_write_removes_remains_of_a_killed_one_and_pruning_keeps_the_newest_and_the_protected(
    tmp_path,
):
    save(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000002.partial")
    assert [c.step for c in intact(tmp_path)] == [1]
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]
    for step in (2, 4, 5, 6):
        save(tmp_path, step)
    prune(tmp_path, 2, protected={3})
    assert [c.step for c in intact(tmp_path)] == [6, 5, 3]


class Evil:
    def __reduce__(self):
        return (print, ("this ran",))


def test_loading_runs_no_code(tmp_path, capsys):
    path = save(tmp_path, 1).path
    torch.save(Evil(), path / STATE)
    with pytest.raises(DmlError, match="contains more than tensors and plain values"):
        checkpoint.Checkpoint(1, path).state()
    assert capsys.readouterr().out == ""
