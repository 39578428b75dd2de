"""Normalised softmax as a module."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dml_core import ClassShard
from dml_losses.arguments import check_batch, check_class_weights, check_positive
from dml_losses.class_sampler import ClassSampler, check_no_virtual_classes
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.cosine_softmax import Virtual
from dml_losses.functional.norm_softmax import norm_softmax
from dml_losses.functional.sphere import common_precision, unit_rows
from dml_losses.ranks.sharded_softmax import sharded_softmax


class NormSoftmax(torch.nn.Module):
    """Softmax cross entropy of cosines with class weights, over a temperature and without a bias.

    L = −mean_b log( exp(x̂_bᵀp̂_y/σ) / Σ_c exp(x̂_bᵀp̂_c/σ) )

    With a `class_fraction` below 1 the sum is over the batch's classes and a random choice of the others, drawn at each
    call. Then a step reads and writes only the chosen rows, and the class weights' gradient is sparse: use an optimizer
    that takes sparse gradients and moves only the rows in them, `torch.optim.SparseAdam`, `Adagrad`, or `SGD` without
    momentum and weight decay.

    Source: Making Classification Competitive for Deep Metric Learning, Eq. 5 and section 4.3.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.
        temperature: σ > 0; 0.05 in the paper. A schedule can move this attribute.
        class_fraction: in (0, 1]; 0.1 costs less than 1 % of Recall@1 in the paper (section 6.5).
        seed: for the choice of classes, a function of the seed and of the number of earlier calls.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Give it to the optimizer.

    Raises:
        TypeError: unless the sizes and the seed are whole numbers, and all other parameters numbers.
        ValueError: for a parameter outside its range.

    Example:
        >>> import torch
        >>> from dml_losses import NormSoftmax
        >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> loss = NormSoftmax(num_classes=2, embedding_dim=4, temperature=0.05)
        >>> loss(embeddings, labels).backward()
        >>> loss.class_weights.grad.shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        temperature: float = 0.05,
        class_fraction: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.temperature = check_positive("temperature", temperature)
        self._sampler = ClassSampler(class_fraction, seed)
        self.class_fraction, self.seed = float(class_fraction), seed

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        virtual: Virtual | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C); see `MemVir` for `virtual`.

        Raises:
            ValueError: for `virtual` with a `class_fraction` below 1, and as `dml_losses.functional.norm_softmax`.
        """
        weights = self.class_weights if class_weights is None else class_weights
        check_batch(embeddings, labels)
        check_class_weights(embeddings, labels, weights)
        check_no_virtual_classes(self.class_fraction, virtual)
        weights, labels, _ = self._sampler.choose(labels, weights, self.class_fraction)
        return norm_softmax(embeddings, labels, weights, temperature=self.temperature, virtual=virtual)

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Compute the same loss from this rank's classes; see `dml_core.ShardableLoss`.

        All ranks draw the same choice of classes, and each uses those that it has.
        """
        weights, labels, first = self._sampler.choose_of_shard(labels, shard, self.class_fraction)
        features_BD, weights_LD = common_precision(embeddings, weights)
        return sharded_softmax(unit_rows(features_BD), labels, weights_LD, first, 1 / self.temperature)

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        num_classes, embedding_dim = self.class_weights.shape
        return (
            f"{num_classes}, {embedding_dim}, temperature={self.temperature}, "
            f"class_fraction={self.class_fraction}, seed={self.seed}"
        )

    def sparse_parameters(self) -> Sequence[str]:
        """Name the class weights, if made with a `class_fraction` below 1; see `dml_core.SparseLoss`."""
        return ("class_weights",) if self._sampler.sparse else ()

    def get_extra_state(self) -> torch.Tensor:
        """Return the number of subsets drawn, so that a resumed run draws the same subsets as an uninterrupted one."""
        return torch.tensor(self._sampler.count)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Restore the number of subsets drawn."""
        self._sampler.count = int(state)
