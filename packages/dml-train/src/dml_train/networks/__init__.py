"""Networks from images to embeddings."""

from __future__ import annotations

from typing import Literal

Pooling = Literal[
    "average", "max", "both", "gem"
]  # defined here, since recipes use it without importing torch
