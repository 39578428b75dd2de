"""Published data sets of re-identification: a folder for each part, and identity and camera in a file's name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from dml_core import DmlError
from dml_train.data.parts import Parts

# 0002_c1s1_000451_03.jpg of Market-1501, 0001_c001_00016450_0.jpg of VeRi-776
_NAME = re.compile(r"(?P<identity>-1|\d+)_(?P<camera>c\d+)")


def list_by_cameras(folder: Path, names: Mapping[str, str], *, left_out: Collection[str] = ()) -> Parts:
    """List the parts of a data set whose files are named ``IDENTITY_cCAMERA…``, with the cameras as groups.

    Args:
        folder: the data set's folder.
        names: the folder of each part.
        left_out: identities whose images are no part of the data set.

    Raises:
        DmlError: a missing folder, or an image of another name.
    """
    parts: dict[str, dict[str, list[Path]]] = {}
    groups: dict[Path, str] = {}
    for part, name in names.items():
        try:
            files = sorted(file for file in (folder / name).iterdir() if file.suffix.lower() == ".jpg")
        except OSError as error:
            raise DmlError(
                f"can't read {folder / name}: {error.strerror}; the data set is incompletely unpacked"
            ) from error
        classes: dict[str, list[Path]] = {}
        for file in files:
            match = _NAME.match(file.name)
            if match is None:
                raise DmlError(
                    f"{file} isn't named by identity and camera, as 0002_c1s1_000451_03.jpg; unpack the archive again"
                )
            if match["identity"] not in left_out:
                classes.setdefault(match["identity"], []).append(file)
                groups[file] = match["camera"]
        parts[part] = classes
    return Parts(**parts, groups=groups)
