"""Commands whose disk is full at any of their writes: one message, nothing damaged, and they resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w
from click.testing import CliRunner, Result

from dml_core import Registry, hookimpl
from dml_train import cli, report
from dml_train.studies.reproduce import paper as papers_of
from dml_train.studies.reproduce import run as reproduction
from dml_train.studies.reproduce.paper import Paper
from dml_train.training import checkpoint
from train_support.photo_world import photo_document, photo_registry
from train_support.small_disk import Disk
from train_support.tiny_world import make_document, make_registry

# Files whose bytes are the same each time; the others hold times.
LASTING = (
    "metrics.jsonl",
    "evaluation.json",
    "pixels",
    "best.toml",
    "model.safetensors",
    "state.pt",
    "*.npy",
)


class Command(NamedTuple):
    """A command that writes on a disk.

    Args:
        registry: finds components.
        arguments: of `dml`.
        resume: added to resume it.
        codes: its exit codes on a full disk.
    """

    registry: Registry
    arguments: list[str]
    resume: list[str]
    codes: tuple[int, ...] = (2,)

    def __call__(self, *, resume: bool = False) -> Result:
        """Call the command, without reports: they take most of the time, and are written like all other files."""
        report.write_report = lambda path, registry: path  # this process ends after the test
        return CliRunner().invoke(cli.main, self.arguments + self.resume * resume, obj=self.registry)


def train(inputs: Path, disk: Path) -> Command:
    """Train, with evaluations that select weights."""
    document = make_document(
        evaluation={"every": 5, "unit": "step"},
        validation={"class_fraction": 0.3, "metric": "recall@1"},
    )
    return Command(
        make_registry(), ["train", _recipe(inputs, document), "--out", f"{disk}/deep/run"], ["--resume"]
    )


def embed(inputs: Path, disk: Path) -> Command:
    """Embed a folder of images."""
    arguments = ["embed", f"{inputs}/run", f"{inputs}/photos"]
    return Command(photo_registry(), [*arguments, "--out", f"{disk}/e.npy", "--labels", f"{disk}/l.npy"], [])


def embed_split(inputs: Path, disk: Path) -> Command:
    """Embed a split of a run's data set."""
    arguments = ["embed", f"{inputs}/run", "--split", "train"]
    return Command(photo_registry(), [*arguments, "--out", f"{disk}/e.npy", "--labels", f"{disk}/l.npy"], [])


def pack(inputs: Path, disk: Path) -> Command:
    """Train on images that are packed first."""
    document = photo_document(inputs / "photos")
    document["dataset"]["cache"] = f"{disk}/cache"
    return Command(
        photo_registry(), ["train", _recipe(inputs, document), "--out", f"{disk}/run"], ["--resume"]
    )


def tune(inputs: Path, disk: Path) -> Command:
    """Search settings."""
    document = make_document(
        training={"steps": 2},
        evaluation={"every": 2, "unit": "step"},
        validation={"class_fraction": 0.34, "metric": "recall@1"},
    )
    arguments = ["tune", _recipe(inputs, document), "--choice", "loss.scale=[2.0,4.0]", "--trials", "2"]
    return Command(make_registry(), [*arguments, "--out", f"{disk}/search"], [])


def reproduce(inputs: Path, disk: Path) -> Command:
    """Reproduce a table of two rows."""
    recipe = _recipe(inputs, make_document(training={"steps": 2}))
    table = {
        "title": "scale",
        "expected": "more is more",
        "recipes": {"glyphs": recipe},
        "metrics": {"sop": ["recall@1"]},
        "rows": [{"label": str(scale), "set": [f"loss.scale={scale}"], "published": {}} for scale in (2.0, 4.0)],
    }  # fmt: skip
    fake = Paper.model_validate(
        {
            "title": "Fake",
            "backbone": "big",
            "selected_on_test": True,
            "selection": "best of 7",
            "tables": {"table-2": table},
        }
    )
    for module in (papers_of, reproduction):  # as above
        module.papers = lambda: {"fake": fake}
    return Command(make_registry(), ["reproduce", "fake/table-2", "--out", f"{disk}/out"], [], codes=(1, 2))


def fetch(inputs: Path, disk: Path) -> Command:
    """Download a data set; the folder is made first."""
    return Command(make_registry(), ["data", "fetch", "sop", "--root", f"{disk}/sop"], [])


def _recipe(inputs: Path, document: dict[str, Any]) -> str:
    path = inputs / "recipe.toml"
    path.write_text(tomli_w.dumps(document))
    return str(path)


COMMANDS: dict[str, Callable[[Path, Path], Command]] = {
    "train": train,
    "embed": embed,
    "embed --split": embed_split,
    "pack": pack,
    "tune": tune,
    "reproduce": reproduce,
}


def fill_at_every_write(disk: Disk, inputs: Path, name: str, sizes: int) -> None:
    """Call a command on disks of so many sizes, each too small or too few files, then on a large one."""
    command = COMMANDS[name](inputs, disk.path)
    whole = command()
    assert whole.exit_code == 0, whole.output
    expected, used = lasting(disk.path), disk.used()
    tried = refused = 0
    for limit, most in zip(("pages", "files"), used, strict=True):
        # Files are written beside those that they replace, so the most used was more than what remains.
        for size in sorted(
            set(np.linspace(0, 1.2 * most, sizes, endpoint=False).astype(int).tolist()) | {most - 1}
        ):
            disk.replace(**{limit: max(size, 1)})
            what = f"{name} with {size} {limit} of {most}"
            result = command()
            tried += 1
            if result.exit_code:
                refused += 1
                check_refusal(what, command, result, disk.path)
                check_intact(disk.path)
                disk.enlarge()
                result = command(resume=True)
                assert result.exit_code == 0, f"{what}: {result.output}"
            assert lasting(disk.path) == expected, what
            left = [path for path in disk.path.rglob(".*") if not path.name.endswith(".lock")]
            assert not left, f"{what}: {left}"
    print(f"{name}: {refused} of {tried} disks were too small")
    assert refused >= 4  # at least the smallest, and the one that lacks a page or a file of the end


def check_refusal(what: str, command: Command, result: Result, disk: Path) -> None:
    """Check that a command said in one message what was refused."""
    assert result.exit_code in command.codes, (what, result.exit_code, result.exception, result.output)
    assert isinstance(result.exception, SystemExit), (what, result.exception)
    message = result.output.splitlines()[-1] if 2 not in command.codes[:1] else result.stderr.splitlines()[-1]
    if result.exit_code == 2:
        assert message.startswith("error: "), (what, message)
        assert str(disk) in message, (what, message)
    assert "No space left on device" in result.output or "disk is full" in result.output, (
        what,
        result.output,
    )


def check_intact(folder: Path) -> None:
    """Check that every file in a folder is complete."""
    for path in folder.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue  # written aside
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".npy":
            np.load(path)
        elif path.name == "checkpoints":
            assert not checkpoint.corrupt(path)


def lasting(folder: Path) -> dict[str, bytes]:
    """Read the files in a folder whose bytes are the same each time."""
    return {str(path): path.read_bytes() for pattern in LASTING for path in _visible(folder, pattern)}


def _visible(folder: Path, pattern: str) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob(pattern)) if not path.name.startswith("."))


def refuse_every_command(disk: Disk, inputs: Path) -> None:
    """Call every command on a read-only disk, which is empty."""
    disk.make_read_only()
    for name, make in {**COMMANDS, "data fetch": fetch}.items():
        result = make(inputs, disk.path)()
        assert result.exit_code == 2, (name, result.output)
        assert isinstance(result.exception, SystemExit), (name, result.exception)
        message = result.stderr.splitlines()[-1]
        assert message.startswith("error: can't"), (name, message)
        assert str(disk.path) in message, (name, message)
        assert "Read-only file system" in message, (name, message)


def resume_read_only_run(disk: Disk, inputs: Path) -> None:
    """Resume a run on a disk that became read-only: an unfinished one is refused, a complete one is not touched."""
    command = train(inputs, disk.path)
    whole = command()
    assert whole.exit_code == 0, whole.output
    run = disk.path / "deep" / "run"
    (run / "evaluation.json").rename(disk.path / "evaluation.json")
    disk.make_read_only()
    result = command(resume=True)
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith(f"error: can't write {run}"), result.stderr


def train_until_read_only(disk: Disk, inputs: Path) -> None:
    """Train on a disk that becomes read-only after the first checkpoint."""

    class ReadOnly:
        @hookimpl
        def dml_step_end(self, step: int) -> None:
            if step == 5:
                disk.make_read_only()

    # Without a logger: the kernel makes no disk read-only while a file on it is open for writing.
    document = make_document(logging={"every": 1, "loggers": []})
    registry = make_registry()
    registry.plugins.register(ReadOnly(), distribution="read-only")
    run = disk.path / "run"
    result = Command(registry, ["train", _recipe(inputs, document), "--out", str(run)], [])()
    assert result.exit_code == 2, result.output
    message = result.stderr.splitlines()[-1]
    assert message.startswith(f"error: can't save the checkpoint of step 8 in {run}"), message
    assert "Read-only file system" in message
    assert f"the checkpoint of step 4 ({run}/checkpoints/step-00000004) is intact" in message
    assert message.endswith("then resume the run (dml train --resume)")


def train_on_read_only_images(disk: Disk, inputs: Path) -> None:
    """Train on images on a read-only disk, which is nothing special."""
    shutil.copytree(inputs / "photos", disk.path / "photos")
    disk.make_read_only()
    recipe = _recipe(inputs, photo_document(disk.path / "photos"))
    result = Command(photo_registry(), ["train", recipe, "--out", f"{inputs}/read-only"], [])()
    assert result.exit_code == 0, result.output
