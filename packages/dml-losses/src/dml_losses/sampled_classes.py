"""A class loss that compares with a random choice of classes at each call.

Shapes: `B` batch, `C` classes, `S` chosen classes, `K` weights (centres) per class, `D` dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import embedding

from dml_core import ClassShard, centers_per_class_of, is_shardable
from dml_core.drawing import GOLDEN, splitmix64
from dml_losses.arguments import check_batch, check_class_weights, check_share, check_whole, show
from dml_losses.class_weights import take_class_weights
from dml_losses.ranks.class_shard import RankClasses


class SampledClasses(torch.nn.Module):
    """A class loss over the batch's classes and a random choice of the others, drawn at each call.

    |choice| = max(⌈fraction · C⌉, distinct classes of the batch)

    Use it if a step over all classes is too slow or takes too much memory: the loss only reads the
    chosen weights, and their gradient is sparse. The optimizer must take sparse gradients and only
    update their rows: use `torch.optim.SparseAdam`, `Adagrad`, or `SGD` without momentum and weight
    decay.

    Source: Making Classification Competitive for Deep Metric Learning, section 4.3; An et al. 2021,
    Partial FC.

    Args:
        loss: a class loss with a parameter ``class_weights``. The loss changes: its class weights
            move to this module.
        class_fraction: in (0, 1]; 0.1 costs less than 1 % of Recall@1 in the paper (section 6.5).
        seed: determines each choice, together with the number of earlier calls.

    Attributes:
        class_weights: (C, D), or (C·K, D). Pass it to the optimizer.

    Raises:
        TypeError: if ``class_weights`` isn't a parameter of the loss, or the seed or the fraction
            has the wrong type.
        ValueError: if the fraction or the seed is out of range.

    Example:
        >>> import torch
        >>> from dml_losses import ArcFace, SampledClasses
        >>> loss = SampledClasses(ArcFace(num_classes=1000, embedding_dim=4), class_fraction=0.01)
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).backward()
        >>> loss.class_weights.grad.coalesce().values().shape
        torch.Size([10, 4])
    """

    def __init__(self, loss: torch.nn.Module, class_fraction: float, seed: int = 0) -> None:
        super().__init__()
        self.class_fraction = check_share("class_fraction", class_fraction)
        self.seed = check_whole("seed", seed, 0)
        self.class_weights = take_class_weights(loss, "SampledClasses")
        self.loss = loss
        self._sparse = self.class_fraction < 1  # unchanged if a schedule changes the fraction
        self._count = 0  # the number of earlier choices

    @property
    def centers_per_class(self) -> int:
        """The number of class weights per class; see `dml_core.MultiCenter`."""
        return centers_per_class_of(self.loss)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        check_batch(embeddings, labels)
        check_class_weights(embeddings, labels, weights, rows_per_class=self.centers_per_class)
        if self._sparse or self.class_fraction < 1:
            classes_S, labels = self._choose(labels, len(weights) // self.centers_per_class)
            weights = self._select_rows(classes_S, weights)
        value: torch.Tensor = self.loss(embeddings, labels, weights)
        return value

    @property
    def sharded_forward(self) -> Callable[[torch.Tensor, torch.Tensor, ClassShard], torch.Tensor]:
        """Compute the same loss from this rank's classes, if the loss supports it; see
        `dml_core.ShardableLoss`.
        """
        if not is_shardable(self.loss):
            raise AttributeError(f"{type(self.loss).__name__} has no sharded_forward")
        return self._sharded_forward

    def _sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Make the same choice on all ranks, and compute with the chosen classes that this rank
        stores.
        """
        assert is_shardable(self.loss)
        if self._sparse or self.class_fraction < 1:
            classes_S, labels = self._choose(labels, shard.num_classes)
            weights, first = shard.class_weights, shard.first
            ends = torch.tensor([first, first + len(weights) // self.centers_per_class]).to(
                classes_S
            )
            start, stop = torch.searchsorted(classes_S, ends).tolist()
            rows = self._select_rows(classes_S[start:stop] - first, weights)
            shard = RankClasses(rows, start, len(classes_S))
        return self.loss.sharded_forward(embeddings, labels, shard)

    extra_repr = show("class_fraction", "seed")

    def sparse_parameters(self) -> Sequence[str]:
        """Return the name of the class weights if the initial fraction is below 1; see
        `dml_core.SparseLoss`.
        """
        return ("class_weights",) if self._sparse else ()

    def get_extra_state(self) -> torch.Tensor:
        """Return the number of earlier choices, so that a resumed run draws the same choices as an
        unbroken run.
        """
        return torch.tensor(self._count)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Restore the number of earlier choices."""
        self._count = int(state)

    def _choose(self, labels: torch.Tensor, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the next classes, (S,) sorted, and convert the labels to indices into this choice,
        (B,).
        """
        generator = torch.Generator().manual_seed(_mix(self.seed, self._count))
        self._count += 1
        return choose_classes(labels.long(), num_classes, self.class_fraction, generator)

    def _select_rows(self, classes_S: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Select the rows of these classes, (S·K, D); a sparse gradient only contains these
        rows.
        """
        center_K = torch.arange(self.centers_per_class, device=classes_S.device)
        indices = (classes_S[:, None] * self.centers_per_class + center_K).flatten()
        rows: torch.Tensor = embedding(indices, weights, sparse=self._sparse)
        return rows


def choose_classes(
    labels: torch.Tensor, num_classes: int, class_fraction: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the batch's classes and a uniform sample of the other classes, without replacement.

    Time and memory are proportional to the choice, not to C, for fractions below a quarter.

    Args:
        labels: (B,) int64 in [0, C).
        num_classes: C.
        class_fraction: in (0, 1].
        generator: a generator on the CPU, so that all ranks and devices make the same choice.

    Returns:
        The choice, (S,) sorted, and the labels as indices into this choice, (B,), both on the
        labels' device.
    """
    own = torch.unique(labels)
    wanted = max(-int(-class_fraction * num_classes // 1), len(own)) - len(own)
    drawn = _draw_distinct(num_classes - len(own), wanted, generator).to(labels.device)
    # The r-th class outside the batch is r plus the number of classes in the batch that precede
    # this class.
    skipped = torch.searchsorted(own - torch.arange(len(own), device=own.device), drawn, right=True)
    choice = torch.cat((own, drawn + skipped)).sort().values
    return choice, torch.searchsorted(choice, labels)


def _draw_distinct(population: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw `count` distinct numbers from range(population) in any order; all sets are equally
    likely.

    The numbers are on the generator's device, not on torch's default device.
    """
    device = generator.device
    if 4 * count >= population:
        return torch.randperm(population, generator=generator, device=device)[:count]
    found = torch.empty(0, dtype=torch.int64, device=device)
    while len(found) < count:
        wanted = (count - len(found) + count // 4 + 16,)
        more = torch.randint(population, wanted, generator=generator, device=device)
        found = torch.unique(torch.cat((found, more)))
    # Drop surplus draws at random: dropping the largest would be a bias.
    return found[torch.randperm(len(found), generator=generator, device=device)[:count]]


def _mix(seed: int, count: int) -> int:
    """Hash a seed and a count to 32 bits, all that torch's generator uses; adjacent counts give
    unrelated bits.
    """
    return (
        splitmix64((seed * 0xD1342543DE82EF95 + (count + 1) * GOLDEN) & 0xFFFFFFFFFFFFFFFF)
        & 0xFFFFFFFF
    )
