"""Networks from images to embeddings."""

from __future__ import annotations

from typing import Literal

# Defined here, since recipes use it before torch is imported.
Pooling = Literal["average", "max", "both", "gem"]
