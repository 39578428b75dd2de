"""The program `dml`, also as ``python -m dml_train``; Ctrl-C ends it without a traceback while its imports run, too."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command."""
    try:
        from dml_train.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
