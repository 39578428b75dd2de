"""The folder of a run: the files in it, by name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dml_core import DmlError
from dml_train.files import lock_folder, partial_path


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The recipe as resolved, every default filled in."""
        return self.path / "recipe.toml"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: the step, and what was measured at it."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def evaluation(self) -> Path:
        """The figures of the trained embedding."""
        return self.path / "evaluation.json"

    @property
    def per_query(self) -> Path:
        """Every metric's value for each query of that evaluation, (Q,) float64 arrays by name; see `save_per_query`."""
        return self.path / "per_query.npz"

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from training in this folder, see `lock_folder`."""
        return lock_folder(self.path, f"training in {self.path}")

    def embeddings(self, part: str = "") -> Path:
        """Embeddings of the test split, (N, D) float32; of another part (``"gallery"``), if named."""
        return self.path / f"{part and part + '_'}embeddings.npy"

    def labels(self, part: str = "") -> Path:
        """Their labels, (N,) int64."""
        return self.path / f"{part and part + '_'}labels.npy"

    @staticmethod
    def refuse(path: Path) -> None:
        """Say so if a new run can't go there.

        Raises:
            DmlError: if there is anything at that path but an empty folder.
        """
        # A run killed before its recipe was whole has nothing to go on with, and nothing to lose.
        if path.is_dir() and all(entry == partial_path(RunFolder(path).recipe) for entry in path.iterdir()):
            return
        if path.exists() or path.is_symlink():
            raise DmlError(
                f"the run folder {path} exists already; nothing was touched. "
                "Go on with that run by --resume, or choose another folder with --out"
            )

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make a new run's folder.

        Raises:
            DmlError: if it can't be made, or there is something there.
        """
        cls.refuse(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DmlError(f"can't make the run folder {path}: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that has begun.

        Raises:
            DmlError: if it isn't one.
        """
        folder = cls(path)
        if not folder.recipe.is_file():
            what = "holds no recipe.toml" if path.is_dir() else "doesn't exist"
            raise DmlError(f"{path} is not a run's folder: it {what}")
        return folder
