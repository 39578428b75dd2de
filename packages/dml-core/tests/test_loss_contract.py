"""The contract suite must pass correct losses; the tests in the suite must catch the tested
faults.
"""

from __future__ import annotations

import pytest
import torch
from core_support import suite
from torch import Tensor, nn

from dml_core import ClassShard
from dml_core.testing import LossContract

SHARDED = "test_a_shard_of_all_classes_makes_what_forward_does"


class MeanPairDistance(nn.Module):
    """Correct pair loss: 1 - cosine, averaged over the positive pairs."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        wide = nn.functional.normalize(
            embeddings.float() if embeddings.itemsize < 4 else embeddings, dim=1
        )
        positive = (labels[:, None] == labels[None]) & ~torch.eye(len(labels), dtype=torch.bool)
        return ((1 - wide @ wide.T) * positive).sum() / positive.sum().clamp_min(1)


class Pairs(nn.Module):
    """Pair loss with a gallery, computed by `of_pairs`; correct unless `counts_itself` is set."""

    counts_itself = False

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        gallery: Tensor | None = None,
        gallery_labels: Tensor | None = None,
    ) -> Tensor:
        own = torch.zeros(len(labels), 1, dtype=torch.bool)
        if gallery is None:
            gallery, gallery_labels = embeddings, labels
            own = torch.eye(len(labels), dtype=torch.bool) & (not self.counts_itself)
        same = labels[:, None] == gallery_labels
        cosine = nn.functional.normalize(embeddings) @ nn.functional.normalize(gallery).T
        return self.of_pairs(cosine, same & ~own, ~same)

    def of_pairs(self, cosine: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        raise NotImplementedError


class NPair(Pairs):
    def of_pairs(self, cosine: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        pushed = (cosine.exp() * negative).sum(dim=1, keepdim=True)
        pulled = torch.log1p(pushed * (-cosine).exp()) * positive
        return pulled.sum() / positive.sum().clamp_min(1)


class SumOfPairs(Pairs):
    def of_pairs(self, cosine: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return ((0.9 - cosine).relu() ** 2 * positive).sum() + (cosine.relu() * negative).sum()


class HardestTriplet(Pairs):
    def of_pairs(self, cosine: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        far = torch.where(positive, cosine, 2.0).amin(dim=1)
        near = torch.where(negative, cosine, -2.0).amax(dim=1)
        return ((near - far + 0.2).relu() * positive.any(dim=1) * negative.any(dim=1)).mean()


class PullsToTheCentroid(Pairs):
    def forward(self, embeddings, labels, gallery=None, gallery_labels=None):
        own = torch.zeros(len(labels), 1)
        if gallery is None:
            gallery, gallery_labels = embeddings, labels
            own = torch.eye(len(labels)) * (not self.counts_itself)
        mine = (labels[:, None] == gallery_labels) * (1 - own).to(gallery)
        return (1 - nn.functional.cosine_similarity(embeddings, mine @ gallery, eps=1e-6)).mean()


@pytest.mark.parametrize("loss", [NPair, SumOfPairs, HardestTriplet, PullsToTheCentroid])
def test_a_row_that_counts_itself_is_found_whatever_the_loss(loss: type[Pairs]) -> None:
    made = loss()
    checked = suite(LossContract, lambda num_classes, embedding_dim: made)()
    checked.test_a_row_is_not_its_own_positive()
    made.counts_itself = True
    if loss is SumOfPairs:  # a row's pair with itself adds 0
        checked.test_a_row_is_not_its_own_positive()
        return
    with pytest.raises(
        AssertionError, match="exclude the diagonal, where a row would be its own positive"
    ):
        checked.test_a_row_is_not_its_own_positive()


class Centres(nn.Module):
    """Correct class loss: 1 - cosine with the class's centre."""

    def __init__(self, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.class_weights = nn.Parameter(torch.randn(num_classes, embedding_dim))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        centres = self.class_weights[labels.long()]
        return (1 - nn.functional.cosine_similarity(embeddings, centres, eps=1e-8)).mean()


class SoftCentres(Centres):
    """Correct class loss that can be computed from a shard of the classes: a softmax of cosines."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            self._logits(embeddings, self.class_weights), labels.long()
        )

    def sharded_forward(self, embeddings: Tensor, labels: Tensor, shard: ClassShard) -> Tensor:
        logits = self._logits(embeddings, shard.class_weights)
        gap = shard.other_logits(logits, labels) - shard.true_logits(logits, labels)
        return nn.functional.softplus(gap).mean()

    def _logits(self, embeddings: Tensor, weights: Tensor) -> Tensor:
        x, w = (
            nn.functional.normalize(
                rows.to(torch.promote_types(rows.dtype, torch.float32)), eps=1e-6
            )
            for rows in (embeddings, weights)
        )
        with torch.autocast("cpu", enabled=False):
            return 8 * x @ w.T


TestCorrectPairLoss = suite(LossContract, lambda num_classes, embedding_dim: MeanPairDistance())
TestCorrectClassLoss = suite(LossContract, Centres)
TestCorrectShardableLoss = suite(LossContract, SoftCentres)


def forward_of(kind):
    """Make a loss with this function of loss, embeddings and labels as `forward`."""

    class Loss(MeanPairDistance):
        def forward(self, embeddings, labels):
            return kind(self, embeddings, labels)

    return Loss


distance = MeanPairDistance().forward


def of_positives(loss, embeddings, labels):
    positive = (labels[:, None] == labels[None]).fill_diagonal_(False)
    return (torch.cdist(embeddings, embeddings) * positive).sum() / positive.sum()


def by_negatives(loss, embeddings, labels):
    return (
        distance(embeddings, labels)
        + (embeddings.sum() * 0 + 1) / (labels[:, None] != labels).sum()
    )


def plain_zero(loss, embeddings, labels):
    alone = len(set(labels.tolist())) == len(labels)
    return torch.zeros(()) if alone else distance(embeddings, labels)


def written(loss, embeddings, labels):
    value = distance(embeddings, labels)
    embeddings.data.mul_(2)
    return value


def counted(loss, embeddings, labels):
    loss.calls = getattr(loss, "calls", 0) + 1  # the state dict doesn't contain this count
    return distance(embeddings, labels) * loss.calls


class HasAnUnusedParameter(MeanPairDistance):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(3))


def sharded_by(kind):
    """Make a loss with this function of loss, embeddings, labels and shard as `sharded_forward`."""

    class Loss(SoftCentres):
        def __init__(self):
            super().__init__(6, 8)

        def sharded_forward(self, embeddings, labels, shard):
            return kind(self, embeddings, labels, shard)

    return Loss


def without_the_true_class(loss, embeddings, labels, shard):
    logits = loss._logits(embeddings, shard.class_weights)
    return (shard.other_logits(logits, labels) - shard.true_logits(logits, labels)).mean()


def of_another_gradient(loss, embeddings, labels, shard):
    value = SoftCentres.sharded_forward(loss, embeddings, labels, shard)
    return value + embeddings.sum() - embeddings.sum().detach()


GRADIENT = "test_gradient_reaches_the_embeddings_and_parameters"
FUNCTIONS = [
    (
        lambda loss, x, y: distance(x, y)[None],
        "test_is_a_scalar_in_a_floating_dtype",
        r"shape \(1,\)",
    ),
    (lambda loss, x, y: (x.exp() * 1e5).sum() / 1e5, "test_is_finite_in_every_dtype", "float16"),
    (lambda loss, x, y: (x.exp() * 1e5).sum() / 1e5, "test_is_finite_for_extreme_norms", "1000000"),
    (of_positives, "test_survives_a_batch_without_positives", "without positives"),
    (of_positives, "test_survives_a_batch_of_one", "batch of one"),
    (plain_zero, "test_survives_a_batch_without_positives", "does not back-propagate"),
    (by_negatives, "test_survives_a_batch_without_negatives", "without negatives"),
    (
        lambda loss, x, y: (x[0] ** 2).sum(),
        "test_does_not_depend_on_the_order_of_the_batch",
        "permuted",
    ),
    (written, "test_leaves_its_input_alone", "wrote to the embeddings"),
    (counted, "test_state_dict_round_trips", "after load_state_dict"),
    (lambda loss, x, y: distance(x.detach() + 0 * x, y), GRADIENT, "no gradient reaches"),
]


@pytest.mark.parametrize(
    ("faulty", "test", "complaint"),
    [
        *((forward_of(kind), test, complaint) for kind, test, complaint in FUNCTIONS),
        (HasAnUnusedParameter, GRADIENT, "unused"),
        (sharded_by(without_the_true_class), SHARDED, "the loss by sharded_forward differs"),
        (
            sharded_by(of_another_gradient),
            SHARDED,
            "the embeddings' gradient by sharded_forward differs",
        ),
    ],
)
def test_a_fault_is_caught(faulty, test, complaint):
    with pytest.raises(AssertionError, match=complaint):
        getattr(suite(LossContract, lambda num_classes, embedding_dim: faulty())(), test)()


def test_ddp_reports_a_parameter_that_is_never_used():
    checked = suite(LossContract, lambda num_classes, embedding_dim: HasAnUnusedParameter())()
    with pytest.raises(RuntimeError, match="not used in producing loss"):
        checked.test_works_under_ddp()
