"""The evaluator of a recipe, with clusters or without."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from train_support.tiny_world import provide

from dml_train.measure.evaluate import build_evaluator
from dml_train.recipe.checking import parse


class Clusters:
    """Evaluator that, like `exact`, refuses a number of clusters without a metric of clusters."""

    def __init__(
        self, metrics: Sequence[str] = ("recall@1",), n_clusters: int | None = None, seed: int = 0
    ) -> None:
        if n_clusters is not None and "nmi_max" not in metrics:
            raise ValueError("n_clusters without nmi_max")
        self.options = {"metrics": list(metrics), "n_clusters": n_clusters, "seed": seed}


@pytest.mark.parametrize(
    ("asked", "of_rankings"),
    [
        (["recall@5", "nmi_max", "mine", "tar@far=1e-3"], ["recall@5", "mine"]),
        (["nmi_max", "ari"], ["recall@1"]),  # the evaluator's own
    ],
)
def test_the_evaluator_has_the_recipes_options_and_on_request_no_clusters(
    registry, tiny_document, asked, of_rankings
):
    provide(registry, "evaluators", "clusters", Clusters)
    table = {"name": "clusters", "metrics": asked, "n_clusters": 3}
    recipe = parse(tiny_document(evaluation=table), registry)
    built = build_evaluator(recipe, registry)
    assert built.options == {"metrics": asked, "n_clusters": 3, "seed": 3}
    built = build_evaluator(recipe, registry, clustering=False)
    assert built.options == {"metrics": of_rankings, "n_clusters": None, "seed": 3}
