"""KoLeo as a module."""

from __future__ import annotations

from dml_losses.functional.koleo import koleo
from dml_losses.pair_module import PairModule


class KoLeo(PairModule):
    """Regulariser that spreads embeddings over the sphere, without regard to labels:
    `dml_losses.functional.koleo`.

    Use it as a term of `SumOfLosses` if embeddings collapse, or if they will be compressed to
    codes. DINOv2 weights it by 0.1.
    """

    _function = staticmethod(koleo)

    def __init__(self) -> None:  # declares no options: the inherited constructor would accept any
        super().__init__()
