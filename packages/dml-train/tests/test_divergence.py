"""Which non-finite tensors end a run."""

from __future__ import annotations

import torch
from torch import nn

from dml_train.training.divergence import find_nonfinite, untrained_names


def test_infinities_are_allowed_in_untrained_tensors_and_nan_is_not():
    weights = {"mask": torch.tensor([0.0, -torch.inf])}
    assert find_nonfinite(weights, {}, {}, {"mask"}) is None
    assert find_nonfinite(weights, {}, {}, ()) == "the network's mask"
    assert find_nonfinite({}, {"loss": weights}, {}, ()) == "the loss's mask"
    weights["mask"][0] = torch.nan
    assert find_nonfinite({}, {"model": weights}, {}, {"mask"}) == "the trained mask"


def test_buffers_and_frozen_parameters_are_untrained():
    module = nn.BatchNorm1d(2)
    module.bias.requires_grad_(False)
    names = untrained_names(module)
    assert names == {"bias", "running_mean", "running_var", "num_batches_tracked"}
