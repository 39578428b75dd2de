"""Check a loss's arguments before any work, and raise errors with the actual and the expected
value.

Checks that read values (label ranges) only run if reading is free: on CPU tensors, outside
`torch.compile`. On an accelerator, they would wait for the device; there, the device's index
assertion fails for labels out of range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch


def check_batch(embeddings: torch.Tensor, labels: torch.Tensor) -> None:
    """Check that `embeddings` is a floating (B, D) with B ≥ 1, and `labels` an integer (B,) on the
    same device.
    """
    _check_rows("embeddings", embeddings)
    _check_labels("labels", labels, "embeddings", embeddings)
    if embeddings.shape[0] == 0:
        raise ValueError(
            f"embeddings has shape {tuple(embeddings.shape)}; expected at least one row: skip "
            "empty batches"
        )


def check_gallery(
    embeddings: torch.Tensor, gallery: torch.Tensor | None, gallery_labels: torch.Tensor | None
) -> None:
    """Check that the gallery is absent, or has labels and the embeddings' dimension and device."""
    if gallery is None and gallery_labels is None:
        return
    if gallery is None or gallery_labels is None:
        came, missing = (
            ("gallery_labels", "gallery") if gallery is None else ("gallery", "gallery_labels")
        )
        raise ValueError(
            f"{came} was given without {missing}; expected both, or neither to compare within the "
            "batch"
        )
    _check_rows("gallery", gallery)
    _check_labels("gallery_labels", gallery_labels, "gallery", gallery)
    if gallery.shape[1] != embeddings.shape[1]:
        raise ValueError(
            f"gallery has shape {tuple(gallery.shape)}; expected (rows, {embeddings.shape[1]}) "
            f"to match embeddings {tuple(embeddings.shape)}"
        )
    if gallery.device != embeddings.device:
        raise ValueError(
            f"gallery is on {gallery.device}; expected {embeddings.device}, where embeddings is"
        )


def check_class_weights(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    *,
    rows_per_class: int = 1,
) -> None:
    """Check that the weights are a floating (C, D), with the embeddings' dimension, and that labels
    are in [0, C).

    If a class has more than one row, the weights must be (C · rows_per_class, D).
    """
    _check_rows("class_weights", class_weights)
    if class_weights.shape[0] % rows_per_class:
        raise ValueError(
            f"class_weights has shape {tuple(class_weights.shape)}; expected {rows_per_class} rows "
            "for each class"
        )
    if class_weights.shape[1] != embeddings.shape[1]:
        raise ValueError(
            f"embeddings has shape {tuple(embeddings.shape)}; expected (batch, "
            f"{class_weights.shape[1]}) to match class_weights {tuple(class_weights.shape)}"
        )
    if class_weights.device != embeddings.device:
        raise ValueError(
            f"class_weights is on {class_weights.device}; expected {embeddings.device}, where "
            "embeddings is: move the loss with loss.to(device)"
        )
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        lowest, highest = int(labels.min()), int(labels.max())
        num_classes = class_weights.shape[0] // rows_per_class
        if lowest < 0 or highest >= num_classes:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(
                f"labels contains {wrong}; expected class indices in [0, {num_classes}), "
                f"as class_weights has shape {tuple(class_weights.shape)}"
            )


def check_positive(name: str, value: float) -> float:
    """Check that `value` is finite and above 0, and return it as a float."""
    return _number(name, value, "a finite number above 0", lambda number: number > 0)


def check_non_negative(name: str, value: float) -> float:
    """Check that `value` is finite and at least 0, and return it as a float."""
    return _number(name, value, "a finite number of at least 0", lambda number: number >= 0)


def check_finite(name: str, value: float) -> float:
    """Check that `value` is finite, and return it as a float."""
    return _number(name, value, "a finite number", lambda number: True)


def check_fraction(name: str, value: float) -> float:
    """Check that `value` is in [0, 1], and return it as a float."""
    return _number(name, value, "a number in [0, 1]", lambda number: 0 <= number <= 1)


def check_share(name: str, value: float) -> float:
    """Check that `value` is in (0, 1], and return it as a float."""
    return _number(name, value, "a number in (0, 1]", lambda number: 0 < number <= 1)


def check_angle(name: str, value: float) -> float:
    """Check that `value` is in [0, π/2), and return it as a float."""
    return _number(name, value, "an angle in [0, π/2)", lambda number: 0 <= number < math.pi / 2)


def check_whole(name: str, value: int, minimum: int) -> int:
    """Check that `value` is an integer (else TypeError) and at least `minimum` (else ValueError),
    and return it.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; expected an integer of at least {minimum}")
    if value < minimum:
        raise ValueError(f"{name} is {value}; expected at least {minimum}")
    return value


def check_margin(margin: float | str) -> float | Literal["soft"]:
    """Check that `margin` is "soft", or finite and at least 0, and return it."""
    if margin == "soft":
        return "soft"
    return _number(
        "margin", margin, "'soft' or a finite number of at least 0", lambda number: number >= 0
    )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that `value` is one of `choices` (else ValueError)."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name} is {value!r}; expected {', '.join(others)} or {last}")


def show(*names: str) -> Callable[[torch.nn.Module], str]:
    """Make a module's `extra_repr`, which lists these attributes after the size of the module's
    class weights.
    """

    def extra_repr(module: torch.nn.Module) -> str:
        sizes = []
        held = vars(module) | dict(module.named_parameters(recurse=False))
        if (weights := held.get("class_weights")) is not None:
            sizes = [
                str(len(weights) // getattr(module, "centers_per_class", 1)),
                str(weights.shape[1]),
            ]
        return ", ".join([*sizes, *(f"{name}={getattr(module, name)!r}" for name in names)])

    return extra_repr


def _number(name: str, value: float | str, wanted: str, holds: Callable[[float], bool]) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; expected {wanted}")
    if not math.isfinite(value) or not holds(value):
        raise ValueError(f"{name} is {value}; expected {wanted}")
    return float(value)


def _check_rows(name: str, rows: torch.Tensor) -> None:
    if not isinstance(rows, torch.Tensor):
        raise TypeError(
            f"{name} is {type(rows).__name__}; expected a floating tensor of shape (rows, dim)"
        )
    if rows.dim() != 2:
        raise ValueError(
            f"{name} has shape {tuple(rows.shape)}; expected two dimensions, (rows, dim)"
        )
    if not rows.is_floating_point():
        raise TypeError(f"{name} has dtype {rows.dtype}; expected a floating dtype")


def _check_labels(name: str, labels: torch.Tensor, rows_name: str, rows: torch.Tensor) -> None:
    if not isinstance(labels, torch.Tensor):
        raise TypeError(
            f"{name} is {type(labels).__name__}; expected an integer tensor of shape (rows,)"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(
            f"{name} has dtype {labels.dtype}; expected an integer dtype such as torch.int64: "
            "floating labels merge identities above 2**24"
        )
    if labels.shape != rows.shape[:1]:
        raise ValueError(
            f"{name} has shape {tuple(labels.shape)}; expected ({rows.shape[0]},) "
            f"to match {rows_name} {tuple(rows.shape)}"
        )
    if labels.device != rows.device:
        raise ValueError(
            f"{name} is on {labels.device}; expected {rows.device}, where {rows_name} is"
        )
