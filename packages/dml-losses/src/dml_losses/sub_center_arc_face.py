"""Sub-centre ArcFace as a module."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dml_core import ClassShard
from dml_losses.arguments import (
    check_angle,
    check_batch,
    check_class_weights,
    check_positive,
    check_whole,
)
from dml_losses.class_sampler import ClassSampler, check_no_virtual_classes
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.cosine_softmax import Virtual
from dml_losses.functional.sphere import common_precision, unit_rows
from dml_losses.functional.sub_center_arc_face import sub_center_arc_face
from dml_losses.ranks.sharded_softmax import sharded_softmax


class SubCenterArcFace(torch.nn.Module):
    """ArcFace with several centres for each class, of which the nearest counts, so that noisy images find their own.

    The equation is in `dml_losses.functional.sub_center_arc_face`. With a `class_fraction` below 1 the sum is over the
    batch's classes and a random choice of the others; see `NormSoftmax`.

    Source: Deng et al. 2020, Sub-center ArcFace. Its second training, without the images far from their class's
    dominant centre, is not part of the loss.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.
        centers_per_class: K ≥ 1; 3 in the paper.
        scale: s > 0; 64 in the paper.
        margin: m in radians, in [0, π/2); 0.5 in the paper.
        class_fraction: in (0, 1].
        seed: for the choice of classes.

    Attributes:
        class_weights: (C·K, D), drawn uniformly from ±1/√D; the centres of a class are consecutive. Give it to the
            optimizer.

    Raises:
        TypeError: unless the sizes, `centers_per_class` and the seed are whole numbers, and all others numbers.
        ValueError: for a parameter outside its range.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        centers_per_class: int = 3,
        scale: float = 64.0,
        margin: float = 0.5,
        class_fraction: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.centers_per_class = check_whole("centers_per_class", centers_per_class, 1)
        self.class_weights = initial_class_weights(
            num_classes, embedding_dim, centers_per_class=self.centers_per_class
        )
        self.scale = check_positive("scale", scale)
        self.margin = check_angle("margin", margin)
        self._sampler = ClassSampler(class_fraction, seed, self.centers_per_class)
        self.class_fraction, self.seed = float(class_fraction), seed

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        virtual: Virtual | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C); see `MemVir` for `virtual`."""
        weights = self.class_weights if class_weights is None else class_weights
        check_batch(embeddings, labels)
        check_class_weights(embeddings, labels, weights, rows_per_class=self.centers_per_class)
        check_no_virtual_classes(self.class_fraction, virtual)
        weights, labels, _ = self._sampler.choose(labels, weights, self.class_fraction)
        return sub_center_arc_face(
            embeddings,
            labels,
            weights,
            centers_per_class=self.centers_per_class,
            scale=self.scale,
            margin=self.margin,
            virtual=virtual,
        )

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Compute the same loss from this rank's classes; see `dml_core.ShardableLoss`."""
        weights, labels, first = self._sampler.choose_of_shard(labels, shard, self.class_fraction)
        features_BD, weights = common_precision(embeddings, weights)
        return sharded_softmax(
            unit_rows(features_BD),
            labels,
            weights,
            first,
            self.scale,
            angular_margin=self.margin,
            centers_per_class=self.centers_per_class,
        )

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        num_rows, embedding_dim = self.class_weights.shape
        return (
            f"{num_rows // self.centers_per_class}, {embedding_dim}, centers_per_class={self.centers_per_class}, "
            f"scale={self.scale}, margin={self.margin}, class_fraction={self.class_fraction}, seed={self.seed}"
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
