"""Images that note in a file when they are read, so that a test can count reads on all machines."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from dml_train.trained.images import ImageList, list_folder


@dataclass(frozen=True)
class LoggedImage:
    """A `StoredImage` that is slow to read, and notes each read in the file `log`."""

    path: Path
    log: Path
    seconds: float

    @property
    def name(self) -> str:
        return str(self.path)

    def read(self) -> bytes:
        time.sleep(self.seconds)
        with self.log.open("a") as log:  # a single write appends a complete line
            log.write(f"{os.getpid()} {self.path}\n")
        return self.path.read_bytes()


def log_readings(folder: Path, log: Path, seconds: float) -> ImageList:
    """List the images of a folder, which will note each read in the file `log`."""
    images = list_folder(folder)
    return replace(
        images, sources=[LoggedImage(file.absolute(), log, seconds) for file in images.files]
    )
