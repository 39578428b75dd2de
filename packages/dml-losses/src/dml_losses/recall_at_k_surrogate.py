"""Recall@k surrogate as a module."""

from __future__ import annotations

from collections.abc import Sequence

from dml_losses.arguments import check_positive
from dml_losses.functional.recall_at_k_surrogate import check_cutoffs, recall_at_k_surrogate
from dml_losses.pair_module import PairModule


class RecallAtKSurrogate(PairModule):
    """One minus the mean recall at multiple cut-offs, with sigmoids:
    `dml_losses.functional.recall_at_k_surrogate`.

    Use it to train Recall@k, with batches of thousands of images (see `training.micro_batch`).

    Args:
        ks, k_temperatures, rank_temperature: see `recall_at_k_surrogate`.

    Raises:
        TypeError: if `rank_temperature` isn't a number.
        ValueError: if a parameter is out of range, or there aren't as many temperatures as
            cut-offs.
    """

    _function = staticmethod(recall_at_k_surrogate)
    _options = ("ks", "k_temperatures", "rank_temperature")

    def __init__(
        self,
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        k_temperatures: Sequence[float] | None = None,
        rank_temperature: float = 0.01,
    ) -> None:
        super().__init__()
        check_cutoffs(ks, k_temperatures)
        self.ks, self.k_temperatures = list(ks), k_temperatures and list(k_temperatures)
        self.rank_temperature = check_positive("rank_temperature", rank_temperature)
