"""The network: a backbone, and a head to turn features into an embedding.

Shapes: `B` batch, `F` features, `D` embedding dimension, `L` levels, `H`, `W` height and width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dml_core import InvalidOption, LayeredBackbone
from dml_train.networks import Pooling


class GeM(nn.Module):
    """Generalised mean over positions, ``mean(x^p)^(1/p)``, with a learned p, initially 3.

    Source: Radenović, Tolias & Chum 2018, Fine-tuning CNN Image Retrieval, Eq. 3; x is clamped from
    below at 1e-6.
    """

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(3.0))

    def forward(self, features_BFHW: Tensor) -> Tensor:
        """Pool (B, F, H, W) to (B, F)."""
        # Powers overflow in half precision.
        powers = features_BFHW.float().clamp(min=1e-6).pow(self.p)
        return powers.mean(dim=(2, 3)).pow(1.0 / self.p)


def _both(features_BFHW: Tensor) -> Tensor:
    return features_BFHW.mean(dim=(2, 3)) + features_BFHW.amax(dim=(2, 3))


_POOLINGS: dict[Pooling, Callable[[], Callable[[Tensor], Tensor]]] = {
    "average": lambda: partial(torch.mean, dim=(2, 3)),
    "max": lambda: partial(torch.amax, dim=(2, 3)),
    "both": lambda: _both,
    "gem": GeM,
}


class EmbeddingHead(nn.Module):
    """Head from features to an embedding: pooling over positions, parameter-free LayerNorm, a
    linear layer.

    Source: Zhai & Wu 2019, Making Classification Competitive for Deep Metric Learning, Sec. 3.4
    (the LayerNorm) and Sec. 6.4 (no linear layer). The embedding isn't normalised, since a loss on
    the sphere normalises it.

    Args:
        num_features: number of features of the backbone, F.
        embedding_dim: dimension of the embedding, D.
        pooling: "average", "max", "both" (the sum) or "gem"; only features with positions are
            pooled.
        layer_norm: whether to normalise each image's pooled features to mean 0 and variance 1.
        batch_norm: whether to add a final batch norm (no scale and shift), as in Heated-Up
            Softmax's BN and HBN (Zhang et al. 2018, Sec. 3.3), with batch statistics in training,
            and running statistics in evaluation.
        bias: whether to add a bias in the linear layer.
        linear: whether to use a linear layer; if false, the pooled features are used, and D must
            equal F.
    """

    def __init__(
        self,
        num_features: int,
        embedding_dim: int,
        pooling: Pooling = "average",
        layer_norm: bool = True,
        batch_norm: bool = False,
        bias: bool = True,
        linear: bool = True,
    ) -> None:
        super().__init__()
        if not linear and embedding_dim != num_features:
            raise ValueError(
                f"embedding_dim is {embedding_dim} and linear is false; "
                f"expected {num_features}, the number of features"
            )
        self.embedding_dim = embedding_dim
        self.pool = _POOLINGS[pooling]()
        self.norm = (
            nn.LayerNorm(num_features, elementwise_affine=False) if layer_norm else nn.Identity()
        )
        self.linear = nn.Linear(num_features, embedding_dim, bias=bias) if linear else nn.Identity()
        self.output = nn.BatchNorm1d(embedding_dim, affine=False) if batch_norm else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        """Map (B, F, H, W) or (B, F) to (B, D)."""
        pooled_BF = self.pool(features) if features.ndim == 4 else features
        embeddings_BD: Tensor = self.output(self.linear(self.norm(pooled_BF)).float())
        return embeddings_BD


class LevelledHead(nn.Module):
    """Heads for features from multiple depths; outputs are concatenated to an embedding.

    The embedding is ``[x_1, …, x_L]`` in training, so that a level's loss sees the rows unchanged
    (`LevelledLoss`), and ``[x_1/‖x_1‖, …, x_L/‖x_L‖]`` in evaluation, so that a similarity is the
    mean over the levels.

    Source: Wang et al. 2021, Ranked List Loss for Deep Metric Learning, Sec. 4.1.3 and 4.3 (L, M,
    H), where an L2 norm follows the linear layer of every level.

    Args:
        levels: a head per level, in the order of the backbone's levels.
        evaluated: indices of the levels to use in evaluation; default: all.
    """

    def __init__(
        self, levels: Sequence[EmbeddingHead], evaluated: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.levels = nn.ModuleList(levels)
        self.dims = [level.embedding_dim for level in levels]
        self.evaluated = list(range(len(levels)) if evaluated is None else evaluated)
        self.embedding_dim = sum(self.dims[index] for index in self.evaluated)  # in evaluation

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Map L tensors (B, F_l, H_l, W_l) or (B, F_l) to (B, D)."""
        parts = [level(each).float() for level, each in zip(self.levels, features, strict=True)]
        if not self.training:
            parts = [nn.functional.normalize(parts[index], eps=1e-6) for index in self.evaluated]
        return torch.cat(parts, dim=1)


class LevelledLoss(nn.Module):
    """The weighted sum of the levels' losses, where the loss of a level sees only this level's part
    of the embedding.

    ``Σ_l w_l · loss_l(x_l, labels)`` with ``x = [x_1, …, x_L]``.

    Source: Wang et al. 2021, Ranked List Loss for Deep Metric Learning, Sec. 4.1.3: a loss per
    layer, here the layers L, M and H. The paper doesn't give weights; the authors' published
    settings weigh all levels equally.

    Args:
        levels: the losses by level, with separate weights and memory.
        dims: the number of dimensions per level, in the order of concatenation.
        weights: the weight per level, at least 0.
    """

    def __init__(
        self, levels: Sequence[nn.Module], dims: Sequence[int], weights: Sequence[float]
    ) -> None:
        super().__init__()
        if not len(levels) == len(dims) == len(weights):
            raise ValueError(
                f"{len(levels)} losses, {len(dims)} dims and {len(weights)} weights; expected "
                "equal numbers"
            )
        self.levels = nn.ModuleList(levels)
        self.dims, self.weights = list(dims), list(weights)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the scalar loss of embeddings (B, sum of dims) with labels (B,)."""
        parts = torch.split(embeddings, self.dims, dim=1)
        losses = [
            weight * loss(part, labels)
            for weight, loss, part in zip(self.weights, self.levels, parts, strict=True)
        ]
        return torch.stack(losses).sum()


class Whitening(nn.Module):
    """PCA whitening of embeddings scaled to length 1: ``components · (x / |x| − mean)``.

    Source: Jégou & Chum 2012, Negative Evidences and Co-occurences in Image Retrieval, Sec. 3.2
    (whitening after the mean is subtracted). Computed in float64, which autocast doesn't change.

    Args:
        mean_D, components_WD: mean and scaled principal directions, in any float type.
    """

    mean_D: Tensor
    components_WD: Tensor

    def __init__(self, mean_D: Tensor, components_WD: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean_D", mean_D.double())
        self.register_buffer("components_WD", components_WD.double())

    def forward(self, embeddings_BD: Tensor) -> Tensor:
        """Map (B, D) to (B, W) float32."""
        unit_BD = nn.functional.normalize(embeddings_BD.double(), eps=1e-12)
        return ((unit_BD - self.mean_D) @ self.components_WD.T).float()


class EmbeddingModel(nn.Module):
    """A backbone and a head, from images to embeddings.

    If parameters of the backbone are frozen when the model is built, they stay frozen, and so do
    the running statistics of frozen batch norms.

    Attributes:
        backbone_trains: whether the backbone trains, 1 or 0; a schedule may set it
            (``"model.backbone_trains"``). If 0, the running statistics of batch norms don't change,
            either.
        batch_norm_trains: whether batch norms of a training backbone use batch statistics, update
            running statistics and learn scale and shift, 1 or 0; a schedule may set it. 0 is the
            frozen batch norm of the papers.
        flips: whether to average the embeddings of an image and the mirror image.
        whitening: applied to embeddings after training; not part of a checkpoint.
    """

    head: EmbeddingHead | LevelledHead
    backbone_trains: int = 1
    batch_norm_trains: int = 1
    flips: bool = False
    whitening: Whitening | None

    def __init__(self, backbone: nn.Module, head: EmbeddingHead | LevelledHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.register_module("whitening", None)
        self._frozen = frozenset(
            name for name, p in backbone.named_parameters() if not p.requires_grad
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, and update the modes that depend on `backbone_trains` and
        `batch_norm_trains`.
        """
        changes = name in ("backbone_trains", "batch_norm_trains") and value != getattr(self, name)
        super().__setattr__(name, value)
        if changes:
            self._set_modes()

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Map (B, channels, H, W) to (B, D) float32."""
        embeddings_BD: Tensor = self.head(self.backbone(images_BCHW)).float()
        if self.flips:
            embeddings_BD = (
                embeddings_BD + self.head(self.backbone(images_BCHW.flip(3))).float()
            ) / 2
        return embeddings_BD if self.whitening is None else self.whitening(embeddings_BD)

    def frozen_parameters(self) -> list[nn.Parameter]:
        """List the parameters that never train."""
        return [p for name, p in self.backbone.named_parameters() if name in self._frozen]

    @property
    def embedding_dim(self) -> int:
        """D, in evaluation."""
        return (
            self.head.embedding_dim if self.whitening is None else len(self.whitening.components_WD)
        )

    def train(self, mode: bool = True) -> EmbeddingModel:
        """Set training or evaluation mode; frozen parts stay in evaluation mode."""
        super().train(mode)
        self._set_modes()
        return self

    def _set_modes(self) -> None:
        trains = bool(self.backbone_trains)
        self.backbone.train(self.training and trains)
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(trains and name not in self._frozen)
        for path, module in self.backbone.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
                not self.batch_norm_trains or f"{path}.weight".removeprefix(".") in self._frozen
            ):
                module.eval()
                for parameter in module.parameters():
                    parameter.requires_grad_(False)


def layers_of(backbone: nn.Module, wanted_by: str) -> list[list[nn.Parameter]]:
    """List a backbone's parameters by layer, from the first layer to the last; layers don't share
    parameters.

    Raise an `InvalidOption` that names `wanted_by`, the recipe's key that needs layers, if the
    backbone isn't a `LayeredBackbone`, or doesn't list every parameter once.
    """
    if not isinstance(backbone, LayeredBackbone):
        raise InvalidOption(
            f"{wanted_by} is given, and the backbone {type(backbone).__name__} doesn't list its "
            "layers (dml_core.LayeredBackbone); use timm, bn-inception or small-conv, or omit "
            f"{wanted_by}"
        )
    layers = [list(layer) for layer in backbone.parameters_by_layer()]
    listed = [id(parameter) for layer in layers for parameter in layer]
    if sorted(listed) != sorted(id(parameter) for parameter in backbone.parameters()):
        raise InvalidOption(
            f"{wanted_by} is given, and parameters_by_layer() of {type(backbone).__name__} lists "
            f"{len(listed)} parameters; expected each of its "
            f"{sum(1 for _ in backbone.parameters())} once"
        )
    return layers


def freeze_early_layers(backbone: nn.Module, trained: int) -> None:
    """Freeze all layers of a backbone except the last `trained`; 0 freezes all layers."""
    if trained == 0:
        backbone.requires_grad_(False)
        return
    layers = layers_of(backbone, "training.trained_layers")
    if trained > len(layers):
        raise InvalidOption(
            f"training.trained_layers is {trained}; expected at most {len(layers)}, the layers of "
            "the backbone"
        )
    for layer in layers[: len(layers) - trained]:
        for parameter in layer:
            parameter.requires_grad_(False)


def layer_scales(layers: Sequence[Sequence[nn.Parameter]], decay: float) -> dict[int, float]:
    """Compute learning rate factors by parameter id: ``decay^(L - l)`` in layer l of L.

    Source: Clark et al. 2020, ELECTRA, Sec. 3.1 ("layerwise learning-rate decay").
    """
    last = len(layers) - 1
    return {
        id(parameter): decay ** (last - k) for k, layer in enumerate(layers) for parameter in layer
    }
