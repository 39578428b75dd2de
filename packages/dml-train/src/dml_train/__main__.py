"""The program `dml`, also ``python -m dml_train``; Ctrl-C doesn't print a traceback, even during
imports.
"""

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
