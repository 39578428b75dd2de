"""Build the site: `python docs/site/build.py site`, or `make docs`. Warnings and dead links are
errors.

Writes the staged pages into site/pages and the site into site/html, and runs the code of the
tutorials.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from links import broken_links
from sphinx.cmd.build import build_main
from staging import stage

HERE = Path(__file__).parent


def build(site: Path) -> int:
    """Build the site; return the exit code."""
    shutil.rmtree(site, ignore_errors=True)
    shown = site / "shown" / "gallery" / "example"
    shown.mkdir(parents=True)
    os.environ |= {
        "COLUMNS": "84",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SITE_SHOWN": str(shown.resolve()),
    }
    stage(site / "pages")
    settings = [
        "-c",
        str(HERE),
        "-b",
        "html",
        "-d",
        str(site / "doctrees"),
        "-n",
        "-W",
        "--keep-going",
        "-q",
    ]
    if code := build_main([*settings, str(site / "pages"), str(site / "html")]):
        return code
    broken = broken_links(site / "html")
    print("\n".join(broken) or f"{site / 'html' / 'index.html'}: every link leads somewhere")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
