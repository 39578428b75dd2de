"""The contract of losses. Shapes: `B` batch, `D` dimension."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod

import torch
from torch import Tensor, distributed, nn

from dml_core.protocols.losses import centers_per_class_of, is_class_loss, is_shardable

NUM_CLASSES = 6
DIM = 8


class LossContract(ABC):
    """The properties of losses that the trainer, the wrappers and users need.

    Override only `tolerance`, if the order of summation changes rounding, and `device`, to test on
    an accelerator.
    """

    tolerance = 1e-5  # relative, between float32 values that are equal in exact arithmetic
    device = "cpu"

    @abstractmethod
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        """Make a loss with default settings. A pair loss can ignore the arguments."""

    def test_is_a_scalar_in_a_floating_dtype(self) -> None:
        """The loss of a batch must be a zero-dimensional floating tensor."""
        value = self._loss()(*self._batch())
        assert isinstance(value, Tensor), f"the loss is {value!r}; expected a tensor"
        assert value.ndim == 0, f"the loss has shape {tuple(value.shape)}; expected a scalar"
        assert value.is_floating_point(), (
            f"the loss has dtype {value.dtype}; expected a floating one"
        )

    def test_is_finite_in_every_dtype(self) -> None:
        """Value and gradient must be finite in float64, float32, bfloat16 and float16."""
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            embeddings, labels = self._batch(dtype)
            _assert_backpropagates(self._loss().to(dtype), embeddings, labels, f"in {dtype}")

    def test_is_finite_under_autocast(self) -> None:
        """Value and gradient must be finite under bfloat16 autocast."""
        with torch.autocast(self.device, dtype=torch.bfloat16):
            _assert_backpropagates(self._loss(), *self._batch(), "under autocast")

    def test_is_finite_for_extreme_norms(self) -> None:
        """Value and gradient must be finite for embeddings with norms near 1e-6 and 1e6, zero rows
        and equal rows.
        """
        embeddings, labels = self._batch()
        for scale in (1e-6, 1e6):
            _assert_backpropagates(
                self._loss(), embeddings * scale, labels, f"with embeddings times {scale}"
            )
        zeroed = embeddings.clone()
        zeroed[0] = 0
        _assert_backpropagates(self._loss(), zeroed, labels, "with a zero row")
        _assert_backpropagates(
            self._loss(), embeddings[:1].repeat(len(labels), 1), labels, "with equal rows"
        )

    def test_survives_a_batch_without_positives(self) -> None:
        """If all labels differ, the loss must be finite and back-propagate."""
        embeddings, _ = self._batch()
        labels = torch.arange(NUM_CLASSES, device=self.device)
        _assert_backpropagates(self._loss(), embeddings[:NUM_CLASSES], labels, "without positives")

    def test_survives_a_batch_without_negatives(self) -> None:
        """If all labels are equal, the loss must be finite and back-propagate."""
        embeddings, labels = self._batch()
        _assert_backpropagates(
            self._loss(), embeddings, torch.zeros_like(labels), "without negatives"
        )

    def test_survives_a_batch_of_one(self) -> None:
        """When a single item is given, the loss must be finite and back-propagate."""
        embeddings, labels = self._batch()
        _assert_backpropagates(self._loss(), embeddings[:1], labels[:1], "with a batch of one")

    def test_does_not_depend_on_the_order_of_the_batch(self) -> None:
        """Permuting the batch must not change the value, or the gradient of any item."""
        embeddings, labels = self._batch()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1)).to(
            self.device
        )
        value, gradient = _value_and_gradient(self._loss(), embeddings, labels)
        permuted_value, permuted_gradient = _value_and_gradient(
            self._loss(), embeddings[order], labels[order]
        )
        self._assert_close(permuted_value, value, "the loss of a permuted batch")
        self._assert_close(permuted_gradient, gradient[order], "the gradient of a permuted batch")

    def test_a_row_is_not_its_own_positive(self) -> None:
        """By default, rows must be compared with the other rows of the batch, and not with
        themselves.

        The reference compares a row with the other rows as a gallery. The rows are interchangeable,
        since permuting coordinates maps any row to any other. The reference fills a batch with a
        row, so that any loss uses all pairs equally often both ways. The gradients may differ by a
        factor, since some losses divide by the number of entries. If a row counts itself anywhere,
        the direction of the gradient changes.
        """
        if is_class_loss(self._loss()) or not _takes_a_gallery(self._loss()):
            return
        places = torch.arange(NUM_CLASSES, device=self.device)
        in_batch: list[Tensor] = []
        against_others: list[Tensor] = []
        for class_size in (1, 2, 3):
            for levels in (
                (1.0, 0.5, 0.3),
                (1.0, -0.2, 0.4),
                (1.0, 0.9, 0.8),
            ):  # easy, hard and close rows
                leaf = torch.tensor(
                    levels, dtype=torch.float64, device=self.device, requires_grad=True
                )
                rows, labels = _interchangeable_rows(leaf, class_size)
                in_batch += torch.autograd.grad(self._seeded(rows, labels), leaf, retain_graph=True)
                for i in range(NUM_CLASSES):
                    alone, others = torch.full_like(places, i), places[places != i]
                    value = self._seeded(rows[alone], labels[alone], rows[others], labels[others])
                    against_others += torch.autograd.grad(value, leaf, retain_graph=True)
        found = torch.stack(in_batch)
        expected = torch.stack(against_others).reshape(len(found), NUM_CLASSES, -1).sum(dim=1)
        factor = (found * expected).sum() / expected.square().sum().clamp_min(1e-30)
        error = float((found - factor * expected).norm() / found.norm().clamp_min(1e-30))
        assert (
            error <= 1e3 * self.tolerance
        ), (  # 1e3, since losses in float32 can have steep slopes
            "without a gallery, rows aren't compared with exactly the other rows of the batch: "
            f"the gradients differ by {error:.1e} relative; exclude the diagonal, where a row "
            "would be its own positive"
        )

    def test_takes_every_integer_dtype_of_labels(self) -> None:
        """Labels in int32 or uint8 must give the same loss as int64."""
        embeddings, labels = self._batch()
        expected, _ = _value_and_gradient(self._loss(), embeddings, labels)
        for dtype in (torch.int32, torch.uint8):
            value, _ = _value_and_gradient(self._loss(), embeddings, labels.to(dtype))
            self._assert_close(value, expected, f"the loss with labels in {dtype}")

    def test_gradient_reaches_the_embeddings_and_parameters(self) -> None:
        """If there are positives and negatives, the embeddings and all parameters must get a
        gradient.
        """
        loss = self._loss()
        _, gradient = _value_and_gradient(loss, *self._batch())
        assert gradient.abs().sum() > 0, "no gradient reaches the embeddings"
        without = [name for name, parameter in loss.named_parameters() if parameter.grad is None]
        assert not without, f"no gradient reaches the parameters {without}"

    def test_does_not_hide_nan(self) -> None:
        """If an embedding is NaN, the loss must be NaN, so that a run stops when it diverges."""
        for rows in (slice(2, 3), slice(None)):
            embeddings, labels = self._batch()
            embeddings[rows] = torch.nan
            value = self._loss()(embeddings, labels)
            assert value.isnan(), f"the loss is {value} with NaN in embeddings {rows}"

    def test_leaves_its_input_alone(self) -> None:
        """The loss must not change embeddings or labels."""
        embeddings, labels = self._batch()
        before = embeddings.clone(), labels.clone()
        self._loss()(embeddings, labels)
        assert torch.equal(embeddings, before[0]), "the loss wrote to the embeddings"
        assert torch.equal(labels, before[1]), "the loss wrote to the labels"

    def test_state_dict_round_trips(self) -> None:
        """A new loss that loads the state dict of a used loss must return the same value, bit for
        bit.
        """
        used = self._loss()
        for seed in range(3):
            used(*self._batch(seed=seed))
        torch.manual_seed(7)  # initialise it differently from `used`
        fresh = self.make_loss(NUM_CLASSES, DIM).to(self.device)
        fresh.load_state_dict(copy.deepcopy(used.state_dict()))
        values = []
        for loss in (used, fresh):
            torch.manual_seed(0)
            values.append(loss(*self._batch(seed=3)))
        assert torch.equal(values[0], values[1]), (
            f"{values[1]} after load_state_dict; expected {values[0]}"
        )

    def test_a_shard_of_all_classes_makes_what_forward_does(self) -> None:
        """With a shard of all classes, `sharded_forward` (if any) must give the value and gradients
        of `forward`.
        """
        if not is_shardable(self._loss()):
            return
        embeddings, labels = self._batch()
        found = []
        for sharded in (False, True):
            loss, leaf = self._loss(), embeddings.clone().requires_grad_()
            assert is_shardable(loss)
            shard = _AllClasses(loss.class_weights, centers_per_class_of(loss))
            value = loss.sharded_forward(leaf, labels, shard) if sharded else loss(leaf, labels)
            gradients = torch.autograd.grad(value, (leaf, loss.class_weights))
            found.append(
                (value, *(gradient.to_dense() for gradient in gradients))
            )  # they may be sparse
        names = ("the loss", "the embeddings' gradient", "the class weights' gradient")
        for name, expected, actual in zip(names, *found, strict=True):
            self._assert_close(actual.detach(), expected.detach(), f"{name} by sharded_forward")

    def test_works_under_ddp(self) -> None:
        """DistributedDataParallel must find a gradient for all parameters in all steps (with a
        single rank).
        """
        store = distributed.HashStore()  # type: ignore[attr-defined]  # documented, but missing from __all__
        backend = "cpu:gloo,cuda:nccl" if self.device == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        try:
            model = nn.parallel.DistributedDataParallel(_Step(self._loss()).to(self.device))
            for seed in range(3):  # DDP reports an unused parameter one step later
                model(*self._batch(seed=seed)).backward()
        finally:
            distributed.destroy_process_group()

    def _seeded(self, *arguments: Tensor) -> Tensor:
        loss = self._loss()
        torch.manual_seed(0)  # for the loss's random numbers
        value: Tensor = loss(*arguments)
        return value

    def _loss(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make_loss(NUM_CLASSES, DIM).to(self.device)

    def _batch(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Draw embeddings (B, D) and labels (B,), equal on all devices: classes of 3, 2, 2 and 1
        items.
        """
        labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 5])
        generator = torch.Generator().manual_seed(seed)
        embeddings = torch.randn(len(labels), DIM, generator=generator).to(dtype)
        return embeddings.to(self.device), labels.to(self.device)

    def _assert_close(self, actual: Tensor, expected: Tensor, what: str) -> None:
        scale = expected.abs().max().clamp_min(1e-12)
        error = float((actual - expected).abs().max() / scale)
        assert error <= self.tolerance, (
            f"{what} differs by {error:.1e} relative; at most {self.tolerance}"
        )


class _AllClasses:
    """The `ClassShard` of a single rank."""

    def __init__(self, class_weights: Tensor, centers_per_class: int) -> None:
        self.class_weights, self.first = class_weights, 0
        self.num_classes = len(class_weights) // centers_per_class

    def true_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.gather(1, labels.long()[:, None]).squeeze(1)

    def other_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.scatter(1, labels.long()[:, None], -torch.inf).logsumexp(dim=1)


class _Step(nn.Module):
    """A network and a loss in a module, as used by the trainer."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.network = nn.Linear(DIM, DIM)
        self.loss = loss

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self.loss(self.network(features), labels)
        return value


def _takes_a_gallery(loss: nn.Module) -> bool:
    try:
        inspect.signature(loss.forward).bind(*range(4))
    except TypeError:
        return False
    return True


def _interchangeable_rows(levels: Tensor, class_size: int) -> tuple[Tensor, Tensor]:
    """Make NUM_CLASSES rows and labels; `levels` are the values at the row's index, its class's,
    and elsewhere.
    """
    place = torch.arange(NUM_CLASSES, device=levels.device)
    labels = place // class_size
    kind = 2 - (labels[:, None] == labels).long() - (place[:, None] == place).long()
    return nn.functional.pad(levels[kind], (0, DIM - NUM_CLASSES)), labels


def _value_and_gradient(
    loss: nn.Module, embeddings: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    leaf = embeddings.detach().clone().requires_grad_()
    torch.manual_seed(0)  # for the loss's random numbers
    value = loss(leaf, labels)
    assert value.requires_grad, "the loss does not back-propagate: it has no gradient function"
    value.backward()
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return value.detach(), gradient


def _assert_backpropagates(loss: nn.Module, embeddings: Tensor, labels: Tensor, where: str) -> None:
    value, gradient = _value_and_gradient(loss, embeddings, labels)
    assert torch.isfinite(value), f"the loss is {value} {where}"
    assert torch.isfinite(gradient).all(), f"the gradient is not finite {where}"
    for name, parameter in loss.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad.to_dense()).all(), (
            f"the gradient of {name} is not finite {where}"
        )
