"""The image files below a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from dml_core import DmlError
from dml_train.data.decoding import SUFFIXES


def is_image(file: Path) -> bool:
    """Whether it is a file with an image's suffix."""
    return file.suffix.lower() in SUFFIXES and file.is_file()


def image_files(folder: Path) -> list[Path]:
    """List the images in a folder and its subfolders, links to folders excepted, sorted.

    Raises:
        DmlError: if the folder or one below it can't be read: its images would be missing, unnoticed.
    """
    return sorted(
        file
        for parent, _, names in os.walk(folder, onerror=_refuse)
        for name in names
        if is_image(file := Path(parent, name))
    )


def _refuse(error: OSError) -> NoReturn:
    raise DmlError(f"can't read the folder {error.filename}: {error.strerror}") from error
