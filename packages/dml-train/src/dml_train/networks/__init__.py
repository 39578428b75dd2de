"""Networks from images to embeddings."""

from __future__ import annotations

from typing import Literal

Pooling = Literal["average", "max", "both", "gem"]  # here, since a recipe's tables name it without torch
