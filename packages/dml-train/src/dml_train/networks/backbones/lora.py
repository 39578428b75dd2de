"""Low-rank adaptation: a network's own weights stay frozen, and small matrices beside some of its layers train.

``layer(x) + (alpha / rank) · B A x`` with A (rank, in) random and B (out, rank) zero, by peft (``dml-train[lora]``).

Source: Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models, Sec. 4.1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dml_core import InvalidOption
from dml_train.extras import extra

TARGETS = ("attn.qkv", "attn.proj")  # the linear layers of attention in timm's transformers


def add_lora(
    network: nn.Module,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    probe: Callable[[nn.Module], torch.Tensor],
) -> None:
    """Freeze a network, and add trained matrices beside some of its layers, in place.

    Args:
        network: with the weights from which training starts.
        rank: of the added matrices, at least 1.
        alpha: the scale times `rank`.
        targets: ends of the layers' names, ``"attn.qkv"`` for ``blocks.0.attn.qkv`` and so on.
        probe: computes the network's features on the device "meta", to find layers that it uses without calling them.

    Raises:
        InvalidOption: if no layer has such a name, or one isn't called, so that its matrices would have no effect.
        MissingExtra: if peft isn't installed.
    """
    with extra("lora", "backbone.lora_rank"):
        from peft import LoraConfig, inject_adapter_in_model
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name, _ in network.named_modules()):
            linear = sorted(
                {".".join(n.split(".")[-2:]) for n, m in network.named_modules() if isinstance(m, nn.Linear)}
            )
            raise InvalidOption(
                f"backbone.lora_targets names {target!r}, and no layer's name ends so; "
                f"linear layers: {', '.join(linear) or 'none'}"
            )
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets))  # type: ignore[arg-type]
    inject_adapter_in_model(config, network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    unused = _unused(copy.deepcopy(network).to("meta").eval(), probe)
    if unused:
        raise InvalidOption(
            f"backbone.lora_targets includes {unused[0]!r}, whose weight the model uses without calling the layer, so "
            f"that LoRA would have no effect on it ({len(unused)} such layers); name other layers"
        )


def _unused(network: Any, probe: Callable[[nn.Module], torch.Tensor]) -> list[str]:
    """List the adapted layers that receive no gradient."""
    probe(network).sum().backward()  # type: ignore[no-untyped-call]
    return [
        name.partition(".lora_")[0]
        for name, parameter in network.named_parameters()
        if ".lora_B" in name and parameter.grad is None
    ]
