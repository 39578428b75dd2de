"""By default, a loss's parameters have the papers' values in the module and function; all must have
an effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dml_losses as dml
from dml_losses import functional as F

# The paper's values by parameter, and different values that change the loss.
CASES: list[tuple[Callable[..., Any], Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    (dml.InstanceCrossEntropy, F.instance_cross_entropy,
     {"scale": 64.0, "reweight": True, "anchor_gradient": False},
     {"scale": 8.0, "reweight": False, "anchor_gradient": True}),
    (dml.RankedListLoss, F.ranked_list,
     {"margin": 0.4, "alpha": 1.2, "negative_temperature": 10.0, "positive_temperature": 0.0,
      "balance": 0.5,
      "query_weights": "equal"},
     {"margin": 0.3, "alpha": 1.5, "negative_temperature": 3.0, "positive_temperature": 2.0,
      "balance": 0.3,
      "query_weights": "total"}),
    (dml.Triplet, F.triplet,
     {"triplets": "batch-hard", "margin": 0.2}, {"triplets": "semi-hard", "margin": "soft"}),
    (dml.Contrastive, F.contrastive, {"margin": 1.0}, {"margin": 0.7}),
    (dml.MultiSimilarity, F.multi_similarity,
     {"alpha": 2.0, "beta": 50.0, "threshold": 0.5, "epsilon": 0.1},
     {"alpha": 5.0, "beta": 10.0, "threshold": 0.3}),
    (dml.SmoothAP, F.smooth_ap, {"temperature": 0.01}, {"temperature": 0.1}),
    (dml.SupAP, F.sup_ap,
     {"temperature": 0.01, "slope": 100.0, "saturation": 0.05},
     {"temperature": 0.1, "slope": 10.0, "saturation": 0.2}),
    (dml.RecallAtKSurrogate, F.recall_at_k_surrogate,
     {"ks": (1, 2, 4, 8, 16), "k_temperatures": None, "rank_temperature": 0.01},
     {"ks": (1, 5), "k_temperatures": (1.0,) * 5, "rank_temperature": 0.1}),
    (dml.SupCon, F.sup_con, {"temperature": 0.1}, {"temperature": 0.5}),
    (dml.NormSoftmax, F.norm_softmax, {"temperature": 0.05}, {"temperature": 0.2}),
    (dml.HeatedUpSoftmax, F.heated_up_softmax,
     {"alpha": 16.0, "feature_norm": "l2"}, {"alpha": 3.0, "feature_norm": "batch"}),
    (dml.CosFace, F.cos_face, {"scale": 64.0, "margin": 0.35}, {"scale": 5.0, "margin": 0.2}),
    (dml.ArcFace, F.arc_face, {"scale": 64.0, "margin": 0.5}, {"scale": 5.0, "margin": 0.2}),
    (dml.SubCenterArcFace, F.sub_center_arc_face,
     {"centers_per_class": 3, "scale": 64.0, "margin": 0.5},
     {"centers_per_class": 2, "scale": 5.0, "margin": 0.2}),
    (dml.ProxyNCA, F.proxy_nca,
     {"scale": 1.0, "positive_in_denominator": False},
     {"scale": 3.0, "positive_in_denominator": True}),
    (dml.ProxyAnchor, F.proxy_anchor, {"scale": 32.0, "margin": 0.1},
     {"scale": 5.0, "margin": 0.3}),
    (dml.SoftTriple, F.soft_triple,
     {"centers_per_class": 10, "scale": 20.0, "center_temperature": 0.1, "margin": 0.01,
      "merge_weight": 0.2},
     {"centers_per_class": 3, "scale": 5.0, "center_temperature": 0.5, "margin": 0.1,
      "merge_weight": 0.7}),
]  # fmt: skip
IDS = [case[0].__name__ for case in CASES]
CLASS_CASES = [case for case in CASES if "num_classes" in inspect.signature(case[0]).parameters]


def defaults(callable_: Callable[..., Any], names: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(callable_).parameters
    return {name: parameters[name].default for name in names}


@pytest.mark.parametrize(("module", "function", "paper", "others"), CASES, ids=IDS)
def test_defaults_are_the_papers(module, function, paper, others) -> None:
    assert defaults(module, paper) == defaults(function, paper) == paper


@pytest.mark.parametrize(
    ("function", "paper"),
    [
        (dml.RankedListLoss.simpler, {"margin": 0.4, "negative_temperature": 10.0}),
        (dml.CurricularFace, {"scale": 64.0, "margin": 0.5, "momentum": 0.01}),
        (F.curricular_face, {"scale": 64.0, "margin": 0.5}),
        (F.ada_face, {"scale": 64.0, "margin": 0.4, "concentration": 0.333}),
        (dml.AdaFace, {"scale": 64.0, "margin": 0.4, "concentration": 0.333, "momentum": 0.01}),
        (dml.InfoNCE, {"temperature": 0.07, "learned": True, "max_scale": 100.0}),
        (dml.SigLIP, {"scale": 10.0, "bias": -10.0}),
        (
            dml.MemVir,
            {
                "warmup_steps": 0,
                "step_pacing": True,
                "queue_dtype": "float32",
                "queue_on_cpu": False,
            },
        ),
        (dml.CrossBatchMemory, {"warmup_steps": 0}),
        (dml.BroadFace, {"warmup_steps": 0, "compensate": True}),
    ],
)
def test_defaults_of_losses_without_a_function_of_the_same_parameters(function, paper) -> None:
    assert defaults(function, paper) == paper


def value_and_gradient(
    loss: Callable[..., torch.Tensor], x: torch.Tensor, *arguments: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    value = loss(leaf, *arguments, **options)
    return value, torch.autograd.grad(value, leaf)[0]


@pytest.mark.parametrize(("module", "function", "paper", "others"), CASES, ids=IDS)
def test_the_module_is_its_function_with_its_parameters(module, function, paper, others) -> None:
    """Changing a parameter should change the loss to the function's value with this parameter.

    A number can also be set later, as a schedule does.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 5, generator=generator), torch.arange(20) % 4
    pair = (module, function, paper, others) not in CLASS_CASES

    def make(**options: Any) -> torch.nn.Module:
        torch.manual_seed(0)
        return module(**options) if pair else module(4, 5, **options)

    for name, value in others.items():
        loss = make(**{name: value})
        weights = () if pair else (loss.class_weights,)
        found = value_and_gradient(loss, x, y)
        assert all(
            map(torch.equal, found, value_and_gradient(function, x, y, *weights, **{name: value}))
        )
        if isinstance(value, float):
            scheduled = make()
            setattr(scheduled, name, value)
            assert all(map(torch.equal, value_and_gradient(scheduled, x, y), found)), name
        if name != "centers_per_class":  # the default needs a different number of weights
            assert not all(map(torch.equal, found, value_and_gradient(function, x, y, *weights))), (
                name
            )


@pytest.mark.parametrize(
    ("module", "others"),
    [
        *((module, others) for module, _, _, others in CASES if hasattr(module, "sharded_forward")),
        (dml.CurricularFace, {"scale": 5.0, "margin": 0.2, "momentum": 0.4}),
        (dml.AdaFace, {"scale": 5.0, "margin": 0.2, "concentration": 3.0, "momentum": 0.9}),
    ],
)
def test_a_sharded_loss_has_the_same_parameters(module, others) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 5, generator=generator), torch.arange(20) % 4
    for name, value in others.items():
        sides = []
        for wrap in (lambda loss: loss, dml.ShardedClasses):
            torch.manual_seed(0)
            loss = wrap(module(4, 5, **{name: value}))
            sides.append([part for _ in range(2) for part in value_and_gradient(loss, x, y)])
        torch.testing.assert_close(*sides)  # float32, sums in a different order


@pytest.mark.parametrize(
    ("module", "function", "paper", "others"),
    CLASS_CASES,
    ids=[case[0].__name__ for case in CLASS_CASES],
)
def test_given_class_weights_replace_the_modules_own(module, function, paper, others) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 5, generator=generator), torch.arange(9) % 4
    loss = module(4, 5)
    given = torch.randn(2 * len(loss.class_weights), 5, generator=generator)
    assert torch.equal(loss(x, y + 4, given), function(x, y + 4, given))
