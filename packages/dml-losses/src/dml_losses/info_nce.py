"""InfoNCE as a module."""

from __future__ import annotations

import math

import torch

from dml_losses.arguments import check_positive, show
from dml_losses.functional.info_nce import info_nce
from dml_losses.update_check import expect_updates


class InfoNCE(torch.nn.Module):
    """Cross entropy of a softmax over the other side's rows, at each row's partner, with a learned
    temperature.

    Use it for two towers, such as images and captions, or two views of an image, with large
    batches. With class labels, prefer `SupCon`, whose temperature is constant, unless it must be
    learned. For the equation, see `info_nce` in `dml_losses.functional`.

    Args:
        temperature: 1/t > 0 at the start; default 0.07, as in CLIP.
        learned: whether to learn the temperature; default true, as in CLIP.
        max_scale: the largest t; default 100, as in CLIP. If t exceeds it, this limit is used, and
            log t gets no gradient, whereas CLIP's code resets log t.
        symmetric, over_ranks: see `info_nce`.

    Attributes:
        log_scale: log t, a scalar parameter. Pass it to the optimizer, without weight decay.

    Raises:
        TypeError: if the temperature or `max_scale` isn't a number.
        ValueError: if either isn't finite and positive, or 1/temperature exceeds `max_scale`.
    """

    def __init__(
        self,
        temperature: float = 0.07,
        learned: bool = True,
        max_scale: float = 100.0,
        symmetric: bool = True,
        over_ranks: bool = False,
    ) -> None:
        super().__init__()
        scale = 1 / check_positive("temperature", temperature)
        self.max_scale = check_positive("max_scale", max_scale)
        if scale > max_scale:
            raise ValueError(
                f"temperature is {temperature}; expected at least 1/max_scale, {1 / max_scale}: "
                "raise max_scale"
            )
        log_scale = torch.nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learned)
        self.log_scale = expect_updates("log_scale", log_scale) if learned else log_scale
        self.learned = learned
        self.symmetric = symmetric
        self.over_ranks = over_ranks

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
        return info_nce(
            embeddings,
            labels,
            gallery,
            gallery_labels,
            log_scale=self.log_scale.clamp(max=math.log(self.max_scale)),
            symmetric=self.symmetric,
            over_ranks=self.over_ranks,
        )

    extra_repr = show("learned", "max_scale", "symmetric", "over_ranks")
