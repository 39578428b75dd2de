"""The torchmetrics metric and the Lightning callback return the result of `evaluate` for all
items.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import Labels, evaluate
from dml_eval_rs.retrieval import Options

torch = pytest.importorskip("torch", reason="torch is not installed")
torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
from eval_support.torchmetrics_rank import measure  # noqa: E402

from dml_eval_rs.adapters.torchmetrics import RetrievalMetric  # noqa: E402

OPTIONS: Options = {
    "similarity": "dot",
    "metrics": ("recall@1", "recall@5", "ndcg@3", "nmi", "ami", "ari"),
}
X = torch.tensor(np.random.default_rng(0).integers(-2, 3, (40, 6)).astype(np.float32))  # with ties
LABELS = torch.arange(40) % 7
GROUPS = torch.arange(40) % 3


def items(values: dict[str, Any]) -> dict[str, float]:
    return {name: value.item() for name, value in values.items()}


def test_batches_give_the_figures_of_all_items() -> None:
    metric = RetrievalMetric(OPTIONS)
    for _ in range(2):
        for start in range(0, 40, 9):
            metric.update(X[start : start + 9].requires_grad_(), LABELS[start : start + 9])
        assert items(metric.compute()) == dict(evaluate(X, LABELS, **OPTIONS))
        metric.reset()
    assert isinstance(metric, torchmetrics.Metric)


def test_groups_and_indices_come_with_the_batches() -> None:
    metric = RetrievalMetric({"metrics": "recall@1"})
    # A sampler can change the order, and repeat items: here items 5 and 39.
    order = torch.cat([torch.arange(39, -1, -1), torch.tensor([5, 39])])
    for place in order.split(8):
        metric.update(X[place].bfloat16(), LABELS[place], GROUPS[place], place)
    assert items(metric.compute()) == dict(evaluate(X, Labels(LABELS, GROUPS), metrics="recall@1"))


def test_it_works_in_a_collection_and_is_saved() -> None:
    collection = torchmetrics.MetricCollection([RetrievalMetric({"metrics": "recall@1"})])
    collection.update(X, LABELS)
    assert items(collection.compute())["recall@1"] == evaluate(X, LABELS)["recall@1"]


RANK = """
import sys
import torch
from eval_support.torchmetrics_rank import measure

torch.save(measure(1, *sys.argv[1:]), f"{sys.argv[2]}.1")
"""


@pytest.mark.slow
def test_two_ranks_have_the_figures_of_one_process(tmp_path: Path) -> None:
    """Use this process as rank 0, because importing torchmetrics again would take seconds."""
    torch.save((X, LABELS, OPTIONS), tmp_path / "data")
    arguments = [str(tmp_path / "store"), str(tmp_path / "data")]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    other = subprocess.Popen(
        [sys.executable, "-c", RANK, *arguments], env=os.environ | {"PYTHONPATH": path}
    )
    found = measure(0, *arguments)
    assert other.wait(timeout=300) == 0
    expected = dict(evaluate(X, LABELS, **OPTIONS))
    for values in (*found, *torch.load(tmp_path / "data.1")):
        assert items(values) == expected


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "option": (lambda: RetrievalMetric({"similarity": "l2"}), ValueError, "similarity is 'l2'"),
    "arrays": (lambda: RetrievalMetric({"groups": GROUPS}), TypeError,
        "unexpected keyword argument 'groups'"),
    "shape": (lambda: RetrievalMetric().update(X[0], LABELS), ValueError,
        r"embeddings has shape \(6,\)"),
    "length": (lambda: RetrievalMetric().update(X, LABELS[1:]), ValueError,
        r"\(39,\); expected \(40,\)"),
    "floats": (lambda: RetrievalMetric().update(X, LABELS.float()), TypeError,
        r"use labels.long\(\)"),
    "some": (lambda: added().update(X, LABELS, GROUPS), ValueError,
        "groups is given for some batches only"),
    "then-none": (lambda: added(GROUPS).update(X, LABELS), ValueError,
        "groups is given for some batches only"),
}  # fmt: skip


def added(groups: Any = None) -> RetrievalMetric:
    metric = RetrievalMetric()
    metric.update(X, LABELS, groups)
    return metric


@pytest.mark.parametrize("case", BAD)
def test_errors_say_what_came_and_what_was_expected(case: str) -> None:
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric:UserWarning")
def test_nothing_to_measure_is_said() -> None:
    with pytest.raises(ValueError, match="there are no items; call update"):
        RetrievalMetric().compute()


def test_the_callback_logs_the_figures_of_the_whole_set(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from dml_eval_rs.adapters.lightning import RetrievalCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, outputs: Any = None) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))
            self.outputs = outputs

        def training_step(self, batch: Any, index: int) -> Any:
            return (batch[0] * self.scale).sum()

        def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> Any:
            return self.outputs or {"embeddings": batch[0] * self.scale, "labels": batch[1]}

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, LABELS), batch_size=9)
    options: Options = {"metrics": ("recall@1", "map@r"), "similarity": "dot"}
    trainer = lightning.Trainer(
        max_epochs=2, callbacks=[RetrievalCallback(options)], accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "warnings.warn", lambda *a, **k: None
        )  # Lightning warns, for example about workers
        trainer.fit(Module(), loader, [loader, loader])
        expected = evaluate(X, LABELS, **options)
        for name, value in expected.items():
            assert trainer.callback_metrics[f"val/{name}"].item() == pytest.approx(
                value, abs=1e-7
            )  # logged as float32
            assert f"val/{name}/loader_1" in trainer.callback_metrics
        trainer.test(Module(), loader, verbose=False)
        assert trainer.callback_metrics["test/map@r"].item() == pytest.approx(
            expected["map@r"], abs=1e-7
        )
        with pytest.raises(
            TypeError, match=r"test_step returned keys \['embedding'\]; expected a dict"
        ):
            trainer.test(Module({"embedding": X}), loader, verbose=False)
