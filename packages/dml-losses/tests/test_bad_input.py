"""A wrong argument should raise an error with the given and the expected value, before any work."""

from __future__ import annotations

import pytest
import torch
from losses_support import registered
from losses_support.registered import build

import dml_losses as dml

X, Y = torch.randn(4, 3), torch.tensor([0, 0, 1, 1])
CLASS_LOSSES = [
    *(build(name, 2, 3) for name in registered.CLASS_LOSSES),
    dml.SampledClasses(dml.NormSoftmax(2, 3), 0.5),
    dml.ShardedClasses(dml.NormSoftmax(2, 3)),
]
PAIR_LOSSES = [build(name, 2, 3) for name in registered.PAIR_LOSSES]


@pytest.mark.parametrize(
    "loss", [*PAIR_LOSSES, *CLASS_LOSSES], ids=lambda loss: type(loss).__name__
)
@pytest.mark.parametrize(
    ("embeddings", "labels", "error", "message"),
    [
        (X, Y.float(), TypeError, r"labels has dtype torch\.float32; expected an integer dtype"),
        (
            X,
            Y[:3],
            ValueError,
            r"labels has shape \(3,\); expected \(4,\) to match embeddings \(4, 3\)",
        ),
        (X[0], Y, ValueError, r"embeddings has shape \(3,\); expected two dimensions"),
        (X.long(), Y, TypeError, r"embeddings has dtype torch\.int64; expected a floating dtype"),
        (X[:0], Y[:0], ValueError, r"embeddings has shape \(0, 3\); expected at least one row"),
        (X.numpy(), Y, TypeError, "embeddings is ndarray; expected a floating tensor"),
        (X, [0, 0, 1, 1], TypeError, "labels is list; expected an integer tensor"),
    ],
)
def test_a_wrong_batch_raises(loss, embeddings, labels, error, message) -> None:
    with pytest.raises(error, match=message):
        loss(embeddings, labels)


@pytest.mark.parametrize(
    ("gallery", "gallery_labels", "error", "message"),
    [
        (X, None, ValueError, "gallery was given without gallery_labels"),
        (None, Y, ValueError, "gallery_labels was given without gallery"),
        (X[:, :2], Y, ValueError, r"gallery has shape \(4, 2\); expected \(rows, 3\)"),
        (X, Y.float(), TypeError, r"gallery_labels has dtype torch\.float32"),
        (
            X,
            Y[:2],
            ValueError,
            r"gallery_labels has shape \(2,\); expected \(4,\) to match gallery",
        ),
    ],
)
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_wrong_gallery_raises(loss, gallery, gallery_labels, error, message) -> None:
    with pytest.raises(error, match=message):
        loss(X, Y, gallery, gallery_labels)


def test_class_weights_without_ten_centres_per_class_raise() -> None:
    with pytest.raises(
        ValueError, match=r"class_weights has shape \(21, 3\); expected 10 rows for each class"
    ):
        dml.SoftTriple(2, 3)(X, Y, torch.randn(21, 3))


@pytest.mark.parametrize("label", [2, -1])
@pytest.mark.parametrize("loss", CLASS_LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_label_outside_the_classes_is_named(loss, label: int) -> None:
    with pytest.raises(
        ValueError, match=rf"labels contains {label}; expected class indices in \[0, 2\)"
    ):
        loss(X, torch.tensor([0, 1, label, 1]))


def test_embeddings_with_a_different_dimension_than_the_weights_raise() -> None:
    with pytest.raises(ValueError, match=r"embeddings has shape \(4, 3\); expected \(batch, 5\)"):
        dml.NormSoftmax(2, 5)(X, Y)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: dml.NormSoftmax(0, 4), ValueError, "num_classes is 0; expected at least 1"),
        (lambda: dml.NormSoftmax(4, 0), ValueError, "embedding_dim is 0; expected at least 1"),
        (lambda: dml.NormSoftmax(4.0, 4), TypeError, r"num_classes is 4\.0; expected an integer"),
        (lambda: dml.NormSoftmax(4, 4, 0.0), ValueError,
         r"temperature is 0\.0; expected a finite number above 0"),
        (lambda: dml.HeatedUpSoftmax(4, 5, feature_norm="layer"), ValueError,
         "expected 'l2' or 'batch'"),
        (lambda: dml.CurricularFace(4, 5, margin=1.6), ValueError,
         r"margin is 1\.6; expected an angle in \[0, π/2\)"),
        (lambda: dml.CurricularFace(4, 5, momentum=2.0), ValueError,
         r"expected a number in \[0, 1\]"),
        (lambda: dml.SoftTriple(4, 5, centers_per_class=0), ValueError,
         "centers_per_class is 0; expected at least 1"),
        (lambda: dml.Triplet("hardest"), ValueError,
         "'hardest'; expected 'batch-hard', 'batch-all' or 'semi-hard'"),
        (lambda: dml.Triplet(margin=-0.1), ValueError,
         r"margin is -0\.1; expected 'soft' or a finite number"),
        (lambda: dml.Triplet(margin="hard"), TypeError,
         "margin is 'hard'; expected 'soft' or a finite number"),
        (lambda: dml.Contrastive(margin=0.0), ValueError,
         r"margin is 0\.0; expected a finite number above 0"),
        (lambda: dml.MultiSimilarity(beta=0), ValueError,
         "beta is 0; expected a finite number above 0"),
        (lambda: dml.MultiSimilarity(epsilon=-1), ValueError,
         "epsilon is -1; expected a finite number of at least 0"),
        (lambda: dml.InfoNCE(temperature=0.001), ValueError,
         r"expected at least 1/max_scale, 0\.01"),
        (lambda: dml.SigLIP(scale=0), ValueError, r"scale is 0; expected a finite number above 0"),
        (lambda: dml.RankedListLoss(margin=-0.1), ValueError,
         r"margin is -0\.1; expected a finite number"),
        (lambda: dml.RankedListLoss(margin=1.3), ValueError,
         r"margin is 1\.3; expected at most alpha, 1\.2"),
        (lambda: dml.RankedListLoss(query_weights="sum"), ValueError,
         "expected 'equal' or 'total'"),
        (lambda: dml.RankedListLoss(negative_temperature=float("inf")), ValueError,
         "expected a finite number"),
        (lambda: dml.RecallAtKSurrogate(ks=[]), ValueError,
         r"ks is \[\]; expected integers of at least 1"),
        (lambda: dml.RecallAtKSurrogate(ks=[0, 1]), ValueError,
         r"ks is \[0, 1\]; expected integers"),
        (lambda: dml.RecallAtKSurrogate(ks=[1], k_temperatures=[1.0, 2.0]), ValueError,
         "above 0 for each of ks"),
        (lambda: dml.RecallAtKSurrogate(ks=[1], k_temperatures=[0.0]), ValueError,
         "above 0 for each of ks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_parameter_out_of_range_raises(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()
