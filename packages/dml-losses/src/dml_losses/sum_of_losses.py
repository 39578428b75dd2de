"""A sum of losses of the same batch, each with a name and a weight."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch

from dml_core import nearest
from dml_losses.arguments import check_non_negative
from dml_losses.functional.sphere import full_precision


class SumOfLosses(torch.nn.Module):
    """The weighted sum of several losses of the same batch.

    L = Σ_t w_t · l_t(x, y)

    Use it to train with a class loss and a pair loss at once, or to add a regulariser such as
    `KoLeo`. A term can be any loss, wrapped or not, and keeps separate parameters and memory.

    Source: Luo et al. 2019, Bag of Tricks and a Strong Baseline for Deep Person Re-identification,
    which adds a softmax and a triplet loss.

    Args:
        terms: the losses l_t, by name.
        weights: w_t ≥ 0 by name; the default of each is 1.

    Attributes:
        terms: a `torch.nn.ModuleDict`. A schedule moves an option of a term as
            ``loss.terms.NAME.OPTION``.
        weights: has an attribute per term. A schedule moves it as ``loss.weights.NAME``.

    Raises:
        TypeError: if a term isn't a module, or a weight isn't a number.
        ValueError: if there is no term, a name is empty, has a dot or is a method of
            `torch.nn.ModuleDict`, or a weight is below 0 or belongs to no term.

    Example:
        >>> import torch
        >>> from dml_losses import KoLeo, NormSoftmax, SumOfLosses
        >>> softmax = NormSoftmax(num_classes=2, embedding_dim=4)
        >>> loss = SumOfLosses({"softmax": softmax, "spread": KoLeo()}, weights={"spread": 0.1})
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).backward()
        >>> loss.logged_values()["terms.spread"]
        tensor(-0.3466)
    """

    def __init__(
        self, terms: Mapping[str, torch.nn.Module], weights: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        weights = weights or {}
        if not terms:
            raise ValueError(
                "terms is empty; expected at least one loss, as a table [loss.terms.NAME]"
            )
        for name, term in terms.items():
            if not isinstance(term, torch.nn.Module):
                raise TypeError(
                    f"terms.{name} is {term!r}; expected a loss: a table with its name and options"
                )
            if not name or "." in name or hasattr(torch.nn.ModuleDict, name):
                raise ValueError(
                    f"a term is called {name!r}; expected a different name, without dots"
                )
        for name in weights:
            if name not in terms:
                raise ValueError(
                    f"weights has {name!r}{nearest(name, terms)} terms: {', '.join(terms)}"
                )
        self.terms = torch.nn.ModuleDict(terms)
        self.weights = SimpleNamespace(
            **{
                name: check_non_negative(f"weights.{name}", weights.get(name, 1.0))
                for name in terms
            }
        )
        self._values: dict[str, torch.Tensor] = {}

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,)."""
        # Sum the terms' gradients here, in float32: the sum of finite float16 numbers can exceed
        # the range.
        embeddings = full_precision(embeddings)
        values = {name: term(embeddings, labels) for name, term in self.terms.items()}
        self._values = {f"terms.{name}": value.detach() for name, value in values.items()}
        return torch.stack(
            [getattr(self.weights, name) * value for name, value in values.items()]
        ).sum()

    def logged_values(self) -> Mapping[str, torch.Tensor]:
        """Return each term's value in the last call, without its weight; see
        `dml_core.LoggedLoss`.
        """
        return self._values

    def extra_repr(self) -> str:
        """Return the weights, for `repr`."""
        return ", ".join(f"{name}={weight!r}" for name, weight in vars(self.weights).items())
