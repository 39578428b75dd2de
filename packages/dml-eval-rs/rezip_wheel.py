"""Write wheels anew with the same files: `python rezip_wheel.py WHEEL ...`

maturin 1.16 sometimes leaves the header before a file without its size and checksum, though the
wheel's directory has them (one wheel in some forty). pip accepts such a wheel; uv and package
indexes refuse it.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def rezip(wheel: Path) -> None:
    """Replace a wheel by one with the same files, in their order."""
    partial = wheel.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(partial, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, old.read(entry), compress_type=zipfile.ZIP_DEFLATED)
    partial.replace(wheel)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        rezip(Path(path))
