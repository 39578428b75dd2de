"""Networks from images to embeddings."""

from __future__ import annotations

from typing import Literal

# Defined here, since recipes use it without importing torch.
Pooling = Literal["average", "max", "both", "gem"]
