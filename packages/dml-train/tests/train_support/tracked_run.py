"""Kill and resume a run with experiment trackers, then read the contents of the trackers."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_core import hookimpl
from dml_train.recipe.checking import parse
from dml_train.training.run import train
from train_support.tiny_world import make_document, make_registry

KILLED_AT = 6  # between the checkpoints of steps 4 and 8
FLUSHED_AFTER = 1.5  # seconds: trackers write in the background


def train_tracked(folder: Path, loggers: Sequence[str], kill: bool) -> None:
    """Train the tiny recipe with these loggers; die by SIGKILL after `KILLED_AT` steps, or
    resume.
    """

    class Killer:
        @hookimpl
        def dml_step_end(self, step: int) -> None:
            if kill and step in (KILLED_AT - 1, KILLED_AT):
                time.sleep(FLUSHED_AFTER)
            if kill and step == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)

    registry = make_registry()
    registry.plugins.register(Killer(), distribution="killer")
    document = make_document(logging={"loggers": [{"name": name} for name in loggers], "every": 1})
    train(
        parse(document, registry),
        folder,
        resume=not kill,
        registry=registry,
        console=Console(quiet=True),
    )


def read_wandb(folder: Path) -> dict[str, Any]:
    """Read the files of Weights & Biases; first wait for the end, which can be written after
    `finish` returns.
    """
    found, deadline = _read_wandb(folder), time.monotonic() + 60
    while "complete" not in found and time.monotonic() < deadline:
        time.sleep(0.2)
        found = _read_wandb(folder)
    return found


def _read_wandb(folder: Path) -> dict[str, Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Any] = {"runs": set(), "settings": {}, "points": []}
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in _records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                found["runs"].add(record.run.run_id)
            for item in [*record.run.config.update, *record.config.update]:
                found["settings"][item.key] = json.loads(item.value_json)
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                step = row.pop("step")
                found["points"] += [
                    [step, name, value] for name, value in row.items() if name[0] != "_"
                ]
            if record.WhichOneof("record_type") == "exit":
                found["complete"] = record.exit.exit_code == 0
    return {**found, "runs": sorted(found["runs"])}


def _records(data: bytes) -> list[bytes]:
    """Read a log in LevelDB's format: blocks of 32 KiB with complete or divided records."""
    records, part, at = [], b"", 7  # after the header of W&B
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:  # a header never crosses blocks
            at += 2**15 - at % 2**15
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last part
            records.append(part)
            part = b""
        elif not kind:  # the rest of a file when the writer was killed
            break
    return records


def read_mlflow(folder: Path) -> dict[str, Any]:
    """Read MLflow's database in the parent folder."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("dml")
    runs = client.search_runs([experiment.experiment_id])
    points = [
        [point.step, point.key, point.value]
        for run in runs
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    ]
    return {
        "runs": [run.info.run_name for run in runs],
        "settings": {key: value for run in runs for key, value in run.data.params.items()},
        "points": points,
        "complete": [run.info.status for run in runs] == ["FINISHED"],
    }


def read_trackio(folder: Path) -> dict[str, Any]:
    """Read Trackio's database, in ``TRACKIO_DIR``."""
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = names = SQLiteStorage.get_runs("dml")
    rows = SQLiteStorage.get_logs("dml", name)
    points = [
        [row["step"], key, value]
        for row in rows
        for key, value in row.items()
        if key not in ("step", "timestamp")
    ]
    settings = SQLiteStorage.get_run_config("dml", name)
    return {"runs": names, "settings": settings, "points": points, "complete": True}


READERS = {"wandb": read_wandb, "mlflow": read_mlflow, "trackio": read_trackio}


if __name__ == "__main__":
    train_tracked(Path(sys.argv[1]), sys.argv[2:], kill=True)
