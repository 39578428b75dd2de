"""``python -m dml_train`` is the `dml` command."""

from __future__ import annotations

from dml_train.cli import main

if __name__ == "__main__":
    main()
