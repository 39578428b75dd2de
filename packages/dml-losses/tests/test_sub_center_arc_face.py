"""Sub-centre ArcFace: multiple centres per class, in a softmax over all classes, sampled classes,
and shards.
"""

from __future__ import annotations

import math

import pytest
import torch
from losses_support import BLOCKS, assert_same_gradients, rows, use_blocks
from losses_support import references as reference
from torch.autograd import grad

from dml_losses import MemVir, ShardedClasses, SubCenterArcFace
from dml_losses.functional import arc_face, sub_center_arc_face

S = 2 * math.log(3)  # e^{S/2} = 3


@pytest.mark.parametrize("margin", [0.5, 1.5])  # with 1.5, most angles exceed π − m
@pytest.mark.parametrize(("classes", "centers"), [(1, 3), (4, 1), (4, 3), (12, 2)])
@BLOCKS
def test_value_and_gradients_are_those_of_the_equation(
    classes: int,
    centers: int,
    margin: float,
    kept: bool,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_blocks(monkeypatch, kept, size)
    x, w = rows(9, 0).requires_grad_(), rows(classes * centers, 1).requires_grad_()
    y = torch.tensor([0, 3, 1, 6, 3, 2, 0, 5, 4]) % classes
    value = sub_center_arc_face(x, y, w, centers_per_class=centers, scale=8.0, margin=margin)
    expected = reference.sub_center_arc_face_value(x, y, w, centers, 8.0, margin)
    assert_same_gradients(value, expected, (x, w), (1e-11, 1e-14), (1e-8, 1e-11))


def test_the_nearest_centre_counts_by_hand() -> None:
    """The class has centres at 90° and 60°, the other class at 90° and 180°; the margin turns 60°
    to 90°: 1/(1 + 1).
    """
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    w = torch.tensor([[0.0, 1.0], [0.5, 0.75**0.5], [0.0, -1.0], [-1.0, 0.0]], dtype=torch.float64)
    value = sub_center_arc_face(x, y, w, centers_per_class=2, scale=S, margin=math.pi / 6)
    assert value.item() == pytest.approx(math.log(2))


def test_one_centre_is_arc_face_to_the_bit() -> None:
    x, w, y = rows(20, 2).requires_grad_(), rows(6, 3).requires_grad_(), torch.arange(20) % 6
    one, arc = sub_center_arc_face(x, y, w, centers_per_class=1), arc_face(x, y, w)
    assert torch.equal(one, arc)
    assert all(map(torch.equal, grad(one, (x, w)), grad(arc, (x, w))))


def test_equal_centres_move_only_the_first() -> None:
    x, w, y = (
        rows(4, 4),
        rows(3, 5).repeat_interleave(2, dim=0).requires_grad_(),
        torch.arange(4) % 3,
    )
    gradient = grad(sub_center_arc_face(x, y, w, centers_per_class=2, scale=8.0), w)[0].reshape(
        3, 2, 5
    )
    assert (gradient[:, 1] == 0).all()
    assert (gradient[:, 0] != 0).any(dim=1).all()


@pytest.mark.parametrize("near", [0.0, 1e-12])
def test_sharding_agrees_where_two_centres_are_nearly_equal(near: float) -> None:
    """With and without sharding, the nearest centre is found, and the class's other centre isn't a
    negative.
    """
    x, y = rows(6, 7), torch.arange(6) % 3
    weights = rows(3, 8).repeat_interleave(2, dim=0)
    weights[1::2] *= 1 + near
    found = []
    for wrap in (lambda loss: loss, ShardedClasses):
        inner = SubCenterArcFace(3, 5, centers_per_class=2, scale=8.0).double()
        inner.class_weights.data = weights.clone()
        found.append(wrap(inner)(x, y))
    torch.testing.assert_close(*found, rtol=1e-10, atol=0)


def test_memvir_takes_all_centres_of_earlier_steps_as_constants() -> None:
    """Virtual classes have K centres, too: the loss must equal the loss of rows and classes joined
    by hand.
    """
    loss = MemVir(
        SubCenterArcFace(4, 5, centers_per_class=2, scale=8.0).double(), num_steps=1, margin=0
    )
    first, second, y = rows(6, 9), rows(6, 10), torch.arange(6) % 4
    loss(first, y)
    value = loss(second, y)
    inner = loss.loss
    weights = inner.class_weights.detach().float().double()  # the queue is in float32
    joined = sub_center_arc_face(
        torch.cat((second, first.float().double())),
        torch.cat((y, y + 4)),
        torch.cat((inner.class_weights.detach(), weights)),
        centers_per_class=2,
        scale=8.0,
    )
    torch.testing.assert_close(value, joined, rtol=1e-10, atol=0)


def test_labels_count_classes_and_sharding_divides_classes() -> None:
    loss = ShardedClasses(SubCenterArcFace(3, 5, centers_per_class=4))
    assert loss.num_classes == 3
    assert tuple(loss.sharded_parameters()["loss.class_weights"]) == (0, 12)
    for sharded_or_not in (loss, loss.loss):
        with pytest.raises(
            ValueError, match=r"labels contains 3; expected class indices in \[0, 3\)"
        ):
            sharded_or_not(rows(2, 4), torch.tensor([0, 3]))
