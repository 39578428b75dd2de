"""The evaluator of a recipe, with clusters or without."""

from __future__ import annotations

import pytest

from dml_core import Component, Plugins, Registry, hookimpl
from dml_train.measure.evaluate import build_evaluator
from dml_train.recipe.checking import parse


class Clusters:
    """Evaluator that, like `exact`, refuses a number of clusters without NMI."""

    def __init__(
        self,
        recall_at: tuple[int, ...] = (1,),
        nmi: bool = False,
        nmi_average: str = "arithmetic",
        n_clusters: int | None = None,
        seed: int = 0,
    ):
        if (n_clusters is not None or nmi_average != "arithmetic") and not nmi:
            raise ValueError("n_clusters or nmi_average without nmi")
        self.options = {"recall_at": list(recall_at), "nmi": nmi, "n_clusters": n_clusters, "seed": seed}


class ClusterPlugin:
    @hookimpl
    def dml_evaluators(self):
        yield Component("clusters", Clusters, "options alone")


@pytest.fixture
def registry(tiny_registry: Registry) -> Registry:
    plugins: Plugins = tiny_registry.plugins
    plugins.register(ClusterPlugin(), distribution="clusters")
    return Registry(plugins)


@pytest.mark.parametrize(("nmi", "n_clusters"), [(True, 3), (False, None)])
def test_the_evaluator_has_the_recipes_options_and_seed_and_no_clusters_without_nmi(
    registry, tiny_document, nmi, n_clusters
):
    table = {"name": "clusters", "recall_at": [1, 5], "nmi": True, "nmi_average": "max", "n_clusters": 3}
    recipe = parse(tiny_document(evaluation=table), registry)
    assert build_evaluator(recipe, registry, clustering=nmi).options == {
        "recall_at": [1, 5],
        "nmi": nmi,
        "n_clusters": n_clusters,
        "seed": 3,
    }
