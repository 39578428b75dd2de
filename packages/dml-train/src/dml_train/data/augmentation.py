"""Augment training images by transforms of torchvision, whose random numbers depend only on the
image's seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dml_core import nearest, options_of

Steps = Sequence[str | Mapping[str, Any]]
_TRIED = 8  # seeds to check each transform with, since it may be applied at random
_MASK = 0xFFFFFFFFFFFFFFFF


class Augmentation:
    """A list of transforms from ``torchvision.transforms.v2``, as in a recipe: names, or tables
    with name and options.

    Transforms change bytes, in the order of the list, and `RandomErasing` changes the normalised
    image at the end, so that its default ``value = 0`` is the mean colour. Options are
    torchvision's; an ``interpolation`` or ``policy`` is given by name, and ``transforms`` is a list
    like this one. Raises a `ValueError` if a name or an option is unknown, or a transform doesn't
    keep the shape and the type of an image, (3, *size).
    """

    def __init__(self, steps: Steps, size: tuple[int, int]) -> None:
        built = [(_build(step), step) for step in steps]
        erases = [type(transform).__name__ == "RandomErasing" for transform, _ in built]
        self._of_bytes = [
            transform for (transform, _), erasing in zip(built, erases) if not erasing
        ]
        self._of_floats = [transform for (transform, _), erasing in zip(built, erases) if erasing]
        for (transform, step), erasing in zip(built, erases):
            image = torch.zeros(3, *size, dtype=torch.float32 if erasing else torch.uint8)
            try:
                made = [_transform([transform], image, seed << 1) for seed in range(_TRIED)][-1]
            except Exception as error:
                raise ValueError(
                    f"the augmentation {step!r} failed: {type(error).__name__}: {error}"
                ) from error
            if not isinstance(made, Tensor) or (made.shape, made.dtype) != (
                image.shape,
                image.dtype,
            ):
                shape = getattr(made, "shape", type(made).__name__)
                raise ValueError(
                    f"the augmentation {step!r} turns an image of shape {tuple(image.shape)}, "
                    f"{image.dtype} into {shape}, {getattr(made, 'dtype', '')}; expected the same "
                    "shape and type"
                )

    def change_bytes(self, image_3PQ: Tensor, seed: int) -> Tensor:
        """Apply all transforms except erasing to an image in uint8."""
        changed: Tensor = _transform(self._of_bytes, image_3PQ, seed)
        return changed

    def erase(self, image_3PQ: Tensor, seed: int) -> Tensor:
        """Erase parts of a normalised image, float32."""
        erased: Tensor = _transform(self._of_floats, image_3PQ, ~seed & _MASK)
        return erased


def _transform(transforms: Sequence[Any], image: Tensor, seed: int) -> Any:
    """Apply transforms with torch's generator at `seed`, and restore the generator."""
    if not transforms:
        return image
    with torch.random.fork_rng(devices=[]):
        # Note that torch.manual_seed should not be used: it would also seed GPUs.
        torch.default_generator.manual_seed(seed >> 1)
        for transform in transforms:
            image = transform(image)
    return image


def _build(step: str | Mapping[str, Any]) -> Any:
    """Build a transform from a name, or a table with name and options."""
    from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2

    options = {"name": step} if isinstance(step, str) else dict(step)
    name = str(options.pop("name", ""))
    known = [
        known
        for known, transform in vars(v2).items()
        if isinstance(transform, type) and issubclass(transform, v2.Transform)
    ]
    if name not in known:
        raise ValueError(
            f"unknown augmentation {name!r}{nearest(name, known)} expected a class of "
            "torchvision.transforms.v2, for "
            'example augment = ["RandAugment", {name = "RandomErasing", p = 0.5}]'
        )
    convert = {
        "interpolation": InterpolationMode,
        "policy": AutoAugmentPolicy,
        "transforms": lambda steps: [_build(step) for step in steps],
    }
    accepted = [option.name for option in options_of(getattr(v2, name))]
    if unknown := [option for option in options if option not in accepted]:
        raise ValueError(
            f"the augmentation {name!r} has no option "
            f"{unknown[0]!r}{nearest(unknown[0], accepted)} options: {', '.join(accepted)}"
        )
    try:
        return getattr(v2, name)(
            **{key: convert.get(key, lambda value: value)(value) for key, value in options.items()}
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"the augmentation {name!r}: {error}") from error
