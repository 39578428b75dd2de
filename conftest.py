"""How hypothesis draws, for the tests of all packages.

The same examples for everybody, whatever the machine and however slow: a red run is of what changed. New examples are
for ``pytest --hypothesis-profile=search``, which also writes what it found wrong to ``.hypothesis/``.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

settings.register_profile(
    "search",
    settings.get_profile("ci"),
    derandomize=False,
    max_examples=1000,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
)
settings.load_profile("ci")
