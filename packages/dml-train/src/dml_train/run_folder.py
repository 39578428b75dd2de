"""The folder of a run, and the names of the files in the folder."""

from __future__ import annotations

import json
import shlex
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dml_core import DmlError
from dml_train.checksums import FileRecord, compare, record_of
from dml_train.files import (
    check_path,
    lock_folder,
    partial_path,
    read_json,
    report_write_errors,
    write_json,
)

Tracker = Literal["wandb", "mlflow", "trackio"]  # experiment trackers, by the logger's name


@dataclass(unsafe_hash=True)
class RunFolder:
    """The files of a run.

    Attributes:
        recipe: the resolved recipe, with all defaults.
        data: the fingerprint of the data set: path, size and class per image.
        metrics: a JSON object per line, with a step and the metrics of this step.
        checkpoints: the folder of checkpoints.
        evaluation: the metrics of the trained embedding.
        baselines: these metrics for raw pixels and for the network before training.
        per_query: the metrics per query, (Q,) float64 arrays by name; see `save_per_query`.
        comparison: metrics of other embeddings, ``{name: metrics}``, to compare with the run's in
            the report.
        whitening: PCA whitening of the embedding, learned after training; see
            `dml_train.trained.whitening`.
        matches: groups and lists of items, if defined by the data set; arrays of `dml_core.Labels`
            or `Relevance`.
        manifest: size and SHA-256 of every result file and of the logged metrics; written last,
            when the run ends.
    """

    path: Path

    def __post_init__(self) -> None:
        path = self.path
        self.recipe, self.data = path / "recipe.toml", path / "data.npz"
        self.metrics, self.checkpoints = path / "metrics.jsonl", path / "checkpoints"
        self.evaluation, self.baselines = path / "evaluation.json", path / "baselines.json"
        self.per_query, self.matches = path / "per_query.npz", path / "matches.npz"
        self.comparison, self.whitening = path / "comparison.json", path / "whitening.npz"
        self.manifest = path / "manifest.json"

    def tracker(self, name: Tracker) -> Path:
        """Return the file with this run's ID in an experiment tracker, where a resumed run
        continues the same entry.
        """
        return self.path / f"{name}.json"

    def lock(self) -> AbstractContextManager[None]:
        """Lock this folder, so that other processes can't train in it; see `lock_folder`."""
        return lock_folder(self.path, f"training in {self.path}")

    def embeddings(self, part: str = "") -> Path:
        """Return the file of embeddings, (N, D) float32; `part` is ``"gallery"``, or empty for the
        test split.
        """
        return self.path / f"{part and part + '_'}embeddings.npy"

    def labels(self, part: str = "") -> Path:
        """Return the file of labels, (N,) int64; see `embeddings` for `part`."""
        return self.path / f"{part and part + '_'}labels.npy"

    @property
    def is_finished(self) -> bool:
        """Whether the run ended and wrote results; the results may have been damaged since."""
        return self.evaluation.is_file() and self.manifest.is_file()

    @property
    def resume_command(self) -> str:
        """The command to resume the run; for a finished run, it writes damaged results again."""
        return shlex.join(["dml", "train", str(self.recipe), "--out", str(self.path), "--resume"])

    def write_manifest(self) -> None:
        """Write the manifest of the existing result files; raise `WriteRefused` if the disk is full
        or fails.
        """
        files = {
            path.name: record_of(path)
            for path in (*self._results(), self.metrics)
            if path.is_file()
        }
        write_json(self.manifest, {"files": files})

    def drop_results(self) -> None:
        """Remove the manifest, then the result files; raise `WriteRefused` if a file can't be
        removed.
        """
        for path in (self.manifest, *self._results()):
            with report_write_errors(f"remove {path}"):
                path.unlink(missing_ok=True)

    def read_manifest(self) -> dict[str, FileRecord]:
        """Read the manifest, by file name; raise a `DmlError` if the run isn't finished, or the
        manifest is corrupt.
        """
        if not self.is_finished:
            missing = self.manifest if self.evaluation.is_file() else self.evaluation
            raise DmlError(
                f"the run in {self.path} isn't finished: {missing.name} is missing; resume it",
                arguments=("resume",),
            )
        try:
            return {
                name: FileRecord(bytes=record["bytes"], sha256=record["sha256"])
                for name, record in read_json(self.manifest)["files"].items()
            }
        except (DmlError, AttributeError, KeyError, TypeError) as error:
            raise DmlError(
                f"{self.manifest} is corrupt. Write it again: {self.resume_command}"
            ) from error

    def check_results(self, *paths: Path) -> None:
        """Check that these result files, by default all, haven't changed after the run ended.

        Raise a `DmlError` if a file is missing, changed or damaged (the message names the first
        such file, and how to restore it), if the run isn't finished, or if the manifest is corrupt.
        """
        records = self.read_manifest()
        for path in paths or [self.path / name for name in records]:
            try:
                wrong = (
                    compare(path, records[path.name])
                    if path.name in records
                    else "isn't in the manifest"
                )
            except OSError as error:
                wrong = f"can't be read: {error.strerror}"
            if wrong is not None:
                remedy = f"Write it again: {self.resume_command}"
                if path == self.metrics:  # only training writes it
                    remedy = "Restore it, or move it away to continue without its lines"
                raise DmlError(
                    f"{path} {wrong}, so it was changed or damaged after the run wrote it. {remedy}"
                )

    def _results(self) -> list[Path]:
        """Return the paths of all files that the end of a run may write."""
        of_parts = [
            path(part) for part in ("", "gallery") for path in (self.embeddings, self.labels)
        ]
        return [*of_parts, self.matches, self.per_query, self.baselines, self.evaluation]

    @staticmethod
    def check_new(path: Path) -> None:
        """Raise a `DmlError` if the path exists, unless it is an empty folder, or a run that hasn't
        taken a step.
        """
        folder = RunFolder(path)
        if path.is_dir() and folder._has_no_step():
            return
        exists = f"{path} exists already; nothing was touched"
        if path.is_dir() and not folder.recipe.is_file():
            message = f"the folder {exists}. It contains files but no run: choose another folder"
            raise DmlError(message, arguments=("out",))
        if path.exists() or path.is_symlink():
            message = f"the run folder {exists}. Resume that run, or choose another folder"
            raise DmlError(message, arguments=("resume", "out"))

    def _has_no_step(self) -> bool:
        """Return whether a folder is empty, or only contains files of a run before the first step
        (not results).
        """
        names = {entry.name for entry in self.path.iterdir()}
        if self.recipe.name in names and self.metrics.name not in names:
            return False  # a folder with only a recipe may be the user's
        left = {path.name for path in (self.recipe, self.data, self.metrics, self.checkpoints)}
        left |= {partial_path(path).name for path in (self.recipe, self.data)}
        left |= {self.tracker(name).name for name in get_args(Tracker)} | {"tensorboard", "wandb"}
        is_logged = self.metrics.is_file() and self.metrics.stat().st_size > 0
        is_saved = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        return names <= left and not is_logged and not is_saved

    def read_evaluation(self) -> dict[str, Any]:
        """Read the metrics of the trained embedding; raise a `DmlError` if missing or damaged."""
        self.check_results(self.evaluation)
        return read_json(self.evaluation)

    def read_metrics(self) -> list[dict[str, float | None]]:
        """Read the values logged during training, as a dict per line of ``metrics.jsonl``; empty if
        this is missing.

        Raise a `DmlError` if the file is corrupt, or was changed or damaged after the run ended.
        """
        if not self.metrics.is_file():
            return []
        if self.is_finished:
            self.check_results(self.metrics)
        try:
            return [
                json.loads(line) for line in self.metrics.read_text(encoding="utf-8").splitlines()
            ]
        except (ValueError, RecursionError) as error:
            raise DmlError(f"{self.metrics} is corrupt: {error}") from error

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Create the folder of a new run; raise a `DmlError` if the path isn't new, or the folder
        can't be created.
        """
        cls.check_new(path)
        with report_write_errors(f"make the run folder {path}"):
            path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of an existing run; raise a `DmlError` if it isn't a run's folder."""
        check_path(path)
        folder = cls(path)
        if not folder.recipe.is_file():
            what = "has no recipe.toml" if path.is_dir() else "doesn't exist"
            raise DmlError(f"{path} is not a run's folder: it {what}")
        return folder


def open_run(path: str | Path) -> RunFolder:
    """Open a run's folder, to read metrics and find other files; raise a `DmlError` if it isn't a
    run's folder.
    """
    return RunFolder.open(Path(path))
