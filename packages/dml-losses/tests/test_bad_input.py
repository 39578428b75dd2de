"""A wrong argument raises one error, before any work, with the actual and the expected value."""

from __future__ import annotations

import pytest
import torch

import dml_losses as dml
from dml_losses import InstanceCrossEntropy, NormSoftmax

X, Y = torch.randn(4, 3), torch.tensor([0, 0, 1, 1])
CLASS_LOSSES = [
    cls(2, 3)
    for cls in (
        *(dml.NormSoftmax, dml.HeatedUpSoftmax, dml.Softmax, dml.VirtualSoftmax, dml.CosFace, dml.ArcFace),
        *(
            dml.SubCenterArcFace,
            dml.AdaFace,
            dml.CurricularFace,
            dml.ProxyNCA,
            dml.ProxyAnchor,
            dml.SoftTriple,
        ),
    )
]
CLASS_LOSSES += [dml.SampledClasses(dml.NormSoftmax(2, 3), 0.5), dml.ShardedClasses(dml.NormSoftmax(2, 3))]
PAIR_LOSSES = [InstanceCrossEntropy(), dml.RankedListLoss(), dml.SmoothAP(), dml.SupCon(), dml.SigLIP()]


@pytest.mark.parametrize("loss", [*PAIR_LOSSES, *CLASS_LOSSES], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize(
    ("embeddings", "labels", "error", "message"),
    [
        (X, Y.float(), TypeError, r"labels has dtype torch\.float32; expected an integer dtype"),
        (X, Y.bool(), TypeError, r"labels has dtype torch\.bool; expected an integer dtype"),
        (X, Y[:3], ValueError, r"labels has shape \(3,\); expected \(4,\) to match embeddings \(4, 3\)"),
        (X, Y[:, None], ValueError, r"labels has shape \(4, 1\); expected \(4,\)"),
        (X[0], Y, ValueError, r"embeddings has shape \(3,\); expected two dimensions"),
        (X.long(), Y, TypeError, r"embeddings has dtype torch\.int64; expected a floating dtype"),
        (X[:0], Y[:0], ValueError, r"embeddings has shape \(0, 3\); expected at least one row"),
        (X.numpy(), Y, TypeError, "embeddings is ndarray; expected a floating tensor"),
        (X, [0, 0, 1, 1], TypeError, "labels is list; expected an integer tensor"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(loss, embeddings, labels, error, message) -> None:
    with pytest.raises(error, match=message):
        loss(embeddings, labels)


@pytest.mark.parametrize(
    ("gallery", "gallery_labels", "error", "message"),
    [
        (X, None, ValueError, "gallery was given without gallery_labels"),
        (None, Y, ValueError, "gallery_labels was given without gallery"),
        (
            (Y, Y, Y),
            None,
            ValueError,
            "gallery was given without gallery_labels",
        ),  # a miner's tuple of another library
        (X[:, :2], Y, ValueError, r"gallery has shape \(4, 2\); expected \(rows, 3\)"),
        (X, Y.float(), TypeError, r"gallery_labels has dtype torch\.float32"),
        (X, Y[:2], ValueError, r"gallery_labels has shape \(2,\); expected \(4,\) to match gallery"),
    ],
)
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_gallery_that_does_not_fit_is_refused(loss, gallery, gallery_labels, error, message) -> None:
    with pytest.raises(error, match=message):
        loss(X, Y, gallery, gallery_labels)


def test_class_weights_without_ten_centres_for_each_class_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"class_weights has shape \(21, 3\); expected 10 rows for each class"
    ):
        dml.SoftTriple(2, 3)(X, Y, torch.randn(21, 3))


@pytest.mark.parametrize("label", [2, -1, 2**40])
@pytest.mark.parametrize("loss", CLASS_LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_label_outside_the_classes_is_named(loss, label: int) -> None:
    with pytest.raises(ValueError, match=rf"labels holds {label}; expected class indices in \[0, 2\)"):
        loss(X, torch.tensor([0, 1, label, 1]))


def test_embeddings_of_another_dimension_than_the_weights_are_refused() -> None:
    with pytest.raises(ValueError, match=r"embeddings has shape \(4, 3\); expected \(batch, 5\)"):
        NormSoftmax(2, 5)(X, Y)
