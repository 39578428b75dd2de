"""Run the `dml` command by ``python -m dml_train``."""

from __future__ import annotations

from dml_train.cli import main

if __name__ == "__main__":
    main()
