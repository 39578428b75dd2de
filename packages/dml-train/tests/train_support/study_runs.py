"""Short runs on glyphs for the tests of studies, and the files by which they are compared."""

from __future__ import annotations

from pathlib import Path

from dml_core import registry
from dml_train.recipe.loading import load_recipe
from dml_train.studies.runs import Job

TINY = ("dataset.max_classes=40", "sampler.classes_per_batch=8", "logging.loggers=[]")


def glyph_jobs(folder: Path, count: int, *settings: str) -> list[Job]:
    """Make `count` runs with the seeds 0, 1, …, in folders named by the seed."""
    recipes = [
        load_recipe("glyphs-tiny", [*TINY, *settings, f"training.seed={seed}"], registry())
        for seed in range(count)
    ]
    return [Job(f"seed {r.training.seed}", r, folder / str(r.training.seed)) for r in recipes]


def result_files(
    folder: Path, *, besides: frozenset[str] = frozenset({"seconds.json"})
) -> dict[str, bytes]:
    """Read all files of runs, except the files named in `besides`, which contain times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in besides
    }
