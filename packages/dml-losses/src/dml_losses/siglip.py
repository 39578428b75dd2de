"""SigLIP as a module."""

from __future__ import annotations

import math

import torch

from dml_losses.arguments import check_finite, check_positive, show
from dml_losses.functional.siglip import siglip
from dml_losses.pair_module import PairModule
from dml_losses.update_check import expect_updates


class SigLIP(PairModule):
    """Logistic loss of all pairs, same class or not, with a learned scale and bias.

    Use it for large batches over many ranks: a row doesn't need the sum over all others. For the
    equation, see `siglip` in `dml_losses.functional`.

    Args:
        scale: t > 0 at the start; default 10, as in the paper.
        bias: b at the start; default −10, as in the paper.
        over_ranks: see `siglip`. `dml train` gathers the global batch; elsewhere, use
            ``GlobalBatch(SigLIP(…))``.

    Attributes:
        log_scale, bias: log t and b, scalar parameters. Pass them to the optimizer.

    Raises:
        TypeError: if scale or bias aren't numbers.
        ValueError: if the scale isn't finite and positive, or the bias isn't finite.
    """

    _function = staticmethod(siglip)
    _options = ("log_scale", "bias", "over_ranks")

    def __init__(self, scale: float = 10.0, bias: float = -10.0, over_ranks: bool = False) -> None:
        super().__init__()
        log_scale = torch.tensor(math.log(check_positive("scale", scale)))
        self.log_scale = expect_updates("log_scale", torch.nn.Parameter(log_scale))
        self.bias = torch.nn.Parameter(torch.tensor(check_finite("bias", bias)))
        self.over_ranks = over_ranks

    extra_repr = show("over_ranks")
