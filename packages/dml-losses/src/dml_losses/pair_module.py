"""A pair loss as a module: a function of rows, whose options are attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from dml_losses.arguments import show


class PairModule(torch.nn.Module):
    """A module that calls a pair loss of `dml_losses.functional`."""

    _function: ClassVar[Callable[..., torch.Tensor]]
    # Options to pass. They are attributes of the module, so that a schedule can change them.
    _options: ClassVar[tuple[str, ...]] = ()

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None = None,
        gallery_labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,); the default gallery is the
        batch itself.
        """
        options = {name: getattr(self, name) for name in self._options}
        return type(self)._function(embeddings, labels, gallery, gallery_labels, **options)

    def extra_repr(self) -> str:
        """Return the options, for `repr`."""
        return show(*self._options)(self)
