"""Makes the slow reference importable, whatever way pytest imports tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("dml-eval-rs", deadline=None, max_examples=40)
settings.load_profile("dml-eval-rs")
