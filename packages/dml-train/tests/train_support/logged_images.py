"""Images of a folder that note each of their readings in a file, so that a test can count them on all machines."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from dml_train.data.decoding import ImageSource
from dml_train.trained.images import FolderImages


@dataclass(frozen=True)
class LoggedImage:
    """A `StoredImage` that is slow to read."""

    path: Path
    log: Path
    seconds: float

    @property
    def name(self) -> str:
        return str(self.path)

    def read(self) -> bytes:
        time.sleep(self.seconds)
        with self.log.open("a") as log:  # a line in one write, which appends it whole
            log.write(f"{os.getpid()} {self.path}\n")
        return self.path.read_bytes()


class LoggedImages(FolderImages):
    """The images of a folder; another machine's readings are noted."""

    def __init__(self, folder: Path, log: Path, seconds: float) -> None:
        super().__init__(folder)
        self.log, self.seconds = log, seconds

    def sources(self, items: range) -> list[ImageSource]:
        return [LoggedImage(self.shown[item].absolute(), self.log, self.seconds) for item in items]
