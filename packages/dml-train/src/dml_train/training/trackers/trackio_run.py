"""Trackio."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from dml_train.extras import extra
from dml_train.run_folder import RunFolder
from dml_train.training.trackers.identity import PROJECT, flatten_settings, identify, refusals_of


class TrackioRun:
    """A run of Trackio, in its local database (``TRACKIO_DIR``), unless its environment variables name a server.

    Args:
        directory: the run's folder.
        recipe: becomes the run's config.
        project: the project's name.
        run_name: the run's name; default: that of the folder. Trackio resumes by name, so a number follows a name that
            the project has already.
    """

    def __init__(
        self,
        directory: Path,
        recipe: Mapping[str, Any],
        project: str = PROJECT,
        run_name: str | None = None,
    ) -> None:
        with extra("trackio", "the logger 'trackio'"):
            import trackio

        def create() -> dict[str, str]:
            try:
                known = {run.name for run in trackio.Api().runs(project)}
            except ValueError:  # no such project yet
                known = set()
            name = base = run_name or directory.resolve().name
            number = 1
            while name in known:
                number += 1
                name = f"{base}-{number}"
            return {"name": name, "project": project}

        # Trackio prints to the standard output, which belongs to the results.
        with refusals_of("trackio", RunFolder(directory).tracker("trackio")), redirect_stdout(sys.stderr):
            identity = identify(directory, "trackio", create)
            self._trackio, self._run = (
                trackio,
                trackio.init(
                    project=identity["project"],
                    name=identity["name"],
                    resume="allow",
                    config=flatten_settings(recipe),
                    embed=False,
                    auto_log_cpu=False,
                    auto_log_gpu=False,
                ),
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Flush the values."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()  # not the run's own, which Trackio would call again at the program's end
