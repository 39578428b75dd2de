"""A Lightning callback to measure retrieval when validation or test ends."""

from __future__ import annotations

import sys
from typing import Any

from dml_eval_rs.adapters.torchmetrics import STATES, RetrievalMetric
from dml_eval_rs.retrieval import Options

# A trainer accepts only callbacks from its own package, `pytorch_lightning` or `lightning`.
if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class RetrievalCallback(Callback):
    """A callback to gather an epoch's embeddings from all ranks, and log exact metrics.

    `validation_step` and `test_step` must return ``{"embeddings": (B, D), "labels": (B,)}``, and
    can also return ``"groups"`` and ``"indices"``, see `RetrievalMetric.update`. When a distributed
    sampler is used, return indices to drop repeated items. Data loaders are measured separately.

    Args:
        options: options of `dml_eval_rs.evaluate`, for example
            ``{"metrics": ("recall@1", "map@r")}``.
        prefixes: prefixes of the logged names in validation and test, for example
            ``"val/recall@1"``. If there is a second data loader, names end in ``/loader_1``.

    Raises:
        TypeError, ValueError: as `evaluate`, if options are wrong.
    """

    def __init__(
        self, options: Options | None = None, prefixes: tuple[str, str] = ("val/", "test/")
    ) -> None:
        self._options = options
        self._prefixes = prefixes
        RetrievalMetric(options)  # to check the options now, not when an epoch ends
        self._metrics: dict[int, RetrievalMetric] = {}

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Clear the last epoch's embeddings."""
        self._metrics = {}

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the outputs, except in the sanity check."""
        if trainer.sanity_checking:
            return
        if not isinstance(outputs, dict) or not {"embeddings", "labels"} <= outputs.keys():
            step = "test_step" if trainer.testing else "validation_step"
            came = (
                f"keys {sorted(outputs)}"
                if isinstance(outputs, dict)
                else f"a {type(outputs).__name__}"
            )
            raise TypeError(
                f"{step} returned {came}; expected a dict with 'embeddings' and 'labels'"
            )
        if dataloader_idx not in self._metrics:
            self._metrics[dataloader_idx] = RetrievalMetric(self._options).to(pl_module.device)
        self._metrics[dataloader_idx].update(
            **{name: outputs[name] for name in STATES if name in outputs}
        )

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure all batches, then log the metrics."""
        prefix = self._prefixes[bool(trainer.testing)]
        for index, metric in self._metrics.items():
            suffix = f"/loader_{index}" if index else ""  # Lightning reserves "dataloader_idx"
            # All ranks already have equal values; averaging would only add rounding.
            pl_module.log_dict(
                {f"{prefix}{name}{suffix}": value for name, value in metric.compute().items()}
            )
        self._metrics = {}

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = on_validation_epoch_end
