"""Build an image folder of pictures from Debian packages and print a record.

    python benchmarks/pictures/build.py units ROOT OUT
    python benchmarks/pictures/build.py icons ROOT OUT

ROOT contains the packages' files: use ``/`` if the packages are installed, or a folder into which
you unpacked them. If files are missing, the command names the packages. The command creates
OUT/train/CLASS/*.png and OUT/test/CLASS/*.png, which `image-folder` reads. The last line compares
the hash with the recorded hash in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import PIL
from picture_set import MissingPackages, check_packages, describe, write_pictures

RESULTS = Path(__file__).parents[1] / "results"
TITLES = {
    "units": "Sprites of Battle for Wesnoth's units: a class is a unit type",
    "icons": "Icons of applications in many themes: a class is an application",
}


def main() -> int:
    """Build a set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=TITLES)
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    try:
        source = importlib.import_module(arguments.set)
        check_packages(arguments.root, source.PACKAGES)
    except ImportError as error:
        print(f"{error}; install it: pip install resvg-py==0.5.0", file=sys.stderr)
        return 2
    except MissingPackages as error:
        print(error, file=sys.stderr)
        return 2
    splits = getattr(source, f"read_{arguments.set}")(arguments.root)
    write_pictures(arguments.out, splits)
    tools = f"Pillow {PIL.__version__}" + (f", {source.TOOLS}" if source.TOOLS else "")
    record = describe(TITLES[arguments.set], arguments.root, source.PACKAGES, tools, splits)
    print(record, end="")
    known = RESULTS / f"pictures-{arguments.set}.txt"
    same = known.exists() and record.splitlines()[-1] in known.read_text()
    print(f"the hash is {'the one' if same else 'not'} in {known.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
