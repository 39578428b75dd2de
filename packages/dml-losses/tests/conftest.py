"""Puts the slow references beside these tests on the import path, and quiets hypothesis' clock."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("losses", deadline=None, derandomize=True)
settings.load_profile("losses")
