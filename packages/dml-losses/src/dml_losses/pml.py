"""Use all losses and miners of pytorch-metric-learning as baselines, by name, through a single
adapter.

To use this module, install the extra ``dml-losses[pml]``. Importing it imports
pytorch-metric-learning (2.9 or later). Options are read from the signatures of the installed
version, since version 3 changes some.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning import distances, losses, miners, reducers

from dml_core import Option, nearest, signature_of
from dml_losses.arguments import check_batch, check_gallery
from dml_losses.functional.sphere import common_precision, full_precision

# Parameters that the run supplies under a different name.
_CONTEXT = {
    "embedding_size": "embedding_dim",
    "descriptors_dim": "embedding_dim",
    "l": "embedding_dim",
}
_BY_NAME = {"distance": distances, "reducer": reducers, "miner": miners}


class PytorchMetricLearning(torch.nn.Module):
    """A loss of pytorch-metric-learning, called like this package's losses.

    L = loss(embeddings, labels, miner(embeddings, labels), gallery, gallery_labels)

    Source: `pytorch-metric-learning <https://kevinmusgrave.github.io/pytorch-metric-learning/>`_,
    which defines the losses. Half precision is first converted to float32, and both sides to
    float64 if either is float64.

    Args:
        loss: a loss of pytorch-metric-learning.
        miner: a miner of pytorch-metric-learning, which selects the pairs or triplets for the loss.
    """

    def __init__(self, loss: torch.nn.Module, miner: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None = None,
        gallery_labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,); the default gallery is the
        batch itself.
        """
        check_batch(embeddings, labels)
        check_gallery(embeddings, gallery, gallery_labels)
        embeddings, labels = full_precision(embeddings), labels.long()
        given: dict[
            str, Any
        ] = {}  # by name, and only if needed, since a loss need not take these arguments
        if gallery is not None and gallery_labels is not None:
            embeddings, gallery = common_precision(embeddings, gallery)
            given = {"ref_emb": gallery, "ref_labels": gallery_labels.long()}
        with torch.autocast(embeddings.device.type, enabled=False):
            if self.miner is not None:
                given["indices_tuple"] = self.miner(embeddings, labels, **given)
            value: torch.Tensor = self.loss(embeddings, labels, **given)
        return value


def __getattr__(name: str) -> Callable[..., PytorchMetricLearning]:
    """Make a factory for the loss with this class name, for example
    ``dml_losses.pml.ContrastiveLoss``.

    The options are the parameters of the class and its base classes (the run supplies
    ``embedding_size``), and also ``miner`` (a class name, with a table ``miner_options``),
    ``distance`` and ``reducer`` (class names).
    """
    cls = vars(losses).get(name)
    if not inspect.isclass(cls) or not issubclass(cls, losses.BaseMetricLossFunction):
        raise AttributeError(f"pytorch_metric_learning.losses has no loss {name!r}")
    return _factory(cls)


def _factory(cls: type[Any]) -> Callable[..., PytorchMetricLearning]:
    parameters = _parameters(cls)
    parameter_of = {_CONTEXT.get(parameter, parameter): parameter for parameter in parameters}

    def make(
        miner: str | None = None, miner_options: dict[str, Any] | None = None, **options: Any
    ) -> PytorchMetricLearning:
        arguments = {parameter_of.get(option, option): value for option, value in options.items()}
        for key in ("distance", "reducer"):
            if isinstance(arguments.get(key), str):
                arguments[key] = _find_class(key, arguments[key])()
        picker = None if miner is None else _find_class("miner", miner)(**(miner_options or {}))
        return PytorchMetricLearning(cls(**arguments), picker)

    make.__qualname__ = cls.__qualname__  # for messages
    options = [
        *(
            Option(option, default=parameters[parameter].default)
            for option, parameter in parameter_of.items()
        ),
        Option("miner", str | None, default=None),
        Option("miner_options", dict[str, Any] | None, default=None),
    ]
    make.__signature__ = signature_of(options)  # type: ignore[attr-defined]
    make.__annotations__.clear()  # the registry uses the annotations of the signature
    return make


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Collect the parameters of the constructor, and those that it forwards to its base classes'
    constructors.

    A constructor with ``**kwargs`` forwards optional parameters; with ``*args``, also required
    parameters, for which it otherwise passes values itself.
    """
    found: dict[str, inspect.Parameter] = {}
    forwarded = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for ancestor in cls.__mro__:
        if "__init__" not in vars(ancestor) or not ancestor.__module__.startswith(
            "pytorch_metric_learning"
        ):
            continue
        constructor: Any = vars(ancestor)["__init__"]
        _, *parameters = inspect.signature(constructor).parameters.values()
        for each in parameters:
            required = each.default is each.empty
            plain = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
            if (
                plain
                and each.name != "mat_based_loss"
                and not (required and each.VAR_POSITIONAL not in forwarded)
            ):
                found.setdefault(each.name, each)
        forwarded &= {each.kind for each in parameters}
        if inspect.Parameter.VAR_KEYWORD not in forwarded:
            break
    return found


def _find_class(kind: str, name: str) -> Any:
    """Find a class by name in the library's miners, distances or reducers.

    Raises:
        ValueError: if the name is unknown; the message suggests the nearest known name.
    """
    known = {key: value for key, value in vars(_BY_NAME[kind]).items() if inspect.isclass(value)}
    if name not in known:
        raise ValueError(
            f"{kind} is {name!r}; expected a class of "
            f"pytorch_metric_learning.{_BY_NAME[kind].__name__.split('.')[-1]}"
            f"{nearest(name, known)} known: {', '.join(sorted(known))}"
        )
    return known[name]
