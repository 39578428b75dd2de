"""The adapter returns the values of OML's `EmbeddingMetrics`, also for sequences, categories and
shared galleries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "oml", reason="open-metric-learning is not installed: it brings albumentations and OpenCV"
)
pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(0)
LABELS = RNG.permutation(60) % 8
X = (RNG.normal(size=(8, 5))[LABELS] + RNG.normal(size=(60, 5))).astype(np.float32)


def dataset(queries: Any, gallery: Any, **extra: Any) -> Any:
    import torch
    from oml.interfaces.datasets import IQueryGalleryLabeledDataset

    class Items(IQueryGalleryLabeledDataset):  # type: ignore[misc]
        extra_data = extra

        def __len__(self) -> int:
            return 60

        def __getitem__(self, item: int) -> dict[str, Any]:
            return {"idx": item}

        def get_labels(self) -> Any:
            return torch.tensor(LABELS)

        def get_query_ids(self) -> Any:
            return torch.tensor(queries)

        def get_gallery_ids(self) -> Any:
            return torch.tensor(gallery)

    return Items()


DATASETS: dict[str, Any] = {
    "separate": lambda: dataset(np.arange(20), np.arange(20, 60)),
    "own": lambda: dataset(np.arange(60), np.arange(60)),
    "overlapping": lambda: dataset(np.arange(40), np.arange(59, 9, -1)),
    "sequences": lambda: dataset(
        np.arange(60), np.arange(60), sequence=[f"s{i % 9}" for i in range(60)]
    ),
    "categories": lambda: dataset(np.arange(60), np.arange(60), category=["cat", "dog"] * 30),
}
OPTIONS = {
    "cmc_top_k": (1, 5),
    "precision_top_k": (1, 3, 12),
    "map_top_k": (2, 12),
    "verbose": False,
}


def measure(cls: Any, data: Any, **options: Any) -> Any:
    import torch

    metric = cls(data, **{**OPTIONS, **options})
    metric.setup(60)
    for place in torch.arange(59, -1, -1).split(16):
        metric.update(torch.tensor(X)[place], place.tolist())
    return metric, metric.compute_metrics()


@pytest.mark.parametrize("data", DATASETS)
def test_the_figures_are_theirs(data: str) -> None:
    import oml.metrics
    from oml.utils.misc import flatten_dict

    from dml_eval_rs.adapters.oml import EmbeddingMetrics

    _, right = measure(oml.metrics.EmbeddingMetrics, DATASETS[data]())
    ours, found = measure(EmbeddingMetrics, DATASETS[data]())
    expected = flatten_dict(right)
    assert flatten_dict(found).keys() == expected.keys()
    for name, value in flatten_dict(found).items():
        assert float(value) == pytest.approx(float(expected[name]), abs=1e-6), (
            name
        )  # OML uses float32
    assert ours.evaluation.n_gallery == len(DATASETS[data]().get_gallery_ids())


def test_a_query_without_a_match_counts_zero_where_their_precision_is_nan() -> None:
    import oml.metrics

    from dml_eval_rs.adapters.oml import EmbeddingMetrics

    gallery = np.flatnonzero(LABELS != 3)
    theirs, right = measure(oml.metrics.EmbeddingMetrics, dataset(np.arange(60), gallery))
    _, found = measure(EmbeddingMetrics, dataset(np.arange(60), gallery))
    assert float(found["OVERALL"]["cmc"][5]) == pytest.approx(float(right["OVERALL"]["cmc"][5]))
    values = theirs.metrics_unreduced["OVERALL"]["precision"][3]
    assert values.isnan().sum() == (LABELS == 3).sum()
    assert float(found["OVERALL"]["precision"][3]) == pytest.approx(
        float(values.nan_to_num(0).mean())
    )


def test_errors_say_what_came_and_what_was_expected() -> None:
    from dml_eval_rs.adapters.oml import EmbeddingMetrics

    data = DATASETS["own"]()
    with pytest.raises(
        ValueError, match=r"fmr_vals is \(0.1,\); expected none: use dml_eval_rs.verify"
    ):
        EmbeddingMetrics(data, fmr_vals=(0.1,))
    with pytest.raises(ValueError, match="postprocessor is a int"):
        EmbeddingMetrics(data, postprocessor=1)
    metric = EmbeddingMetrics(data)
    metric.setup(60)
    with pytest.raises(ValueError, match="0 of 60 items have an embedding"):
        metric.compute_metrics()
