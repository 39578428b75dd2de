"""Train embeddings and use them from Python: all that the command `dml` does, in functions.

    import dml_train

    recipe = dml_train.load_recipe("glyphs-tiny", {"training.steps": 20})
    run = dml_train.train(recipe, "runs/tiny")
    model = dml_train.open_model(run.path)

A name is imported at its first use, so that importing the package stays fast. In the repository,
docs/reference/python.md lists all names with examples.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dml_train.cluster.ray_cluster import RayCluster as RayCluster
    from dml_train.cluster.ray_cluster import RayExecutor as RayExecutor
    from dml_train.data import check_dataset as check_dataset
    from dml_train.data import fetch_dataset as fetch_dataset
    from dml_train.data.inspection import Inspection as Inspection
    from dml_train.data.inspection import inspect_images as inspect_images
    from dml_train.demo import run_demo as run_demo
    from dml_train.recipe.bundled import bundled_recipes as bundled_recipes
    from dml_train.recipe.loading import load_recipe as load_recipe
    from dml_train.recipe.tables import Recipe as Recipe
    from dml_train.report import write_report as write_report
    from dml_train.report import write_side_by_side as write_side_by_side
    from dml_train.report.search_page import write_search_page as write_search_page
    from dml_train.run_folder import RunFolder as RunFolder
    from dml_train.run_folder import open_run as open_run
    from dml_train.studies.mlrc import reality_check as reality_check
    from dml_train.studies.reproduce.run import reproduce as reproduce
    from dml_train.studies.tuning.run import TuningResult as TuningResult
    from dml_train.studies.tuning.run import tune as tune
    from dml_train.studies.tuning.space import Choice as Choice
    from dml_train.studies.tuning.space import Range as Range
    from dml_train.trained.embedder import Embedder as Embedder
    from dml_train.trained.evaluation import embed_split as embed_split
    from dml_train.trained.evaluation import evaluate_embeddings as evaluate_embeddings
    from dml_train.trained.evaluation import evaluate_run as evaluate_run
    from dml_train.trained.export import export as export
    from dml_train.trained.folder import FolderEmbedding as FolderEmbedding
    from dml_train.trained.folder import embed_folder as embed_folder
    from dml_train.trained.folder import embed_images as embed_images
    from dml_train.trained.leaks import Leak as Leak
    from dml_train.trained.leaks import find_leaks as find_leaks
    from dml_train.trained.model import TrainedModel as TrainedModel
    from dml_train.trained.model import open_model as open_model
    from dml_train.trained.plan import EmbeddingPlan as EmbeddingPlan
    from dml_train.trained.ray_engine import RayEngine as RayEngine
    from dml_train.trained.search import Gallery as Gallery
    from dml_train.trained.search import SearchResult as SearchResult
    from dml_train.trained.search import search as search
    from dml_train.trained.shards import Shard as Shard
    from dml_train.trained.shards import embed_shard as embed_shard
    from dml_train.trained.shards import join_shards as join_shards
    from dml_train.trained.stored_images import open_images as open_images
    from dml_train.training.conversion import convert_checkpoints as convert_checkpoints
    from dml_train.training.run import check_recipe as check_recipe
    from dml_train.training.run import train as train

__version__ = version("dml-train")

_HOMES = {
    "Choice": "dml_train.studies.tuning.space",
    "FolderEmbedding": "dml_train.trained.folder",
    "Gallery": "dml_train.trained.search",
    "Inspection": "dml_train.data.inspection",
    "Leak": "dml_train.trained.leaks",
    "Range": "dml_train.studies.tuning.space",
    "Recipe": "dml_train.recipe.tables",
    "RunFolder": "dml_train.run_folder",
    "SearchResult": "dml_train.trained.search",
    "TuningResult": "dml_train.studies.tuning.run",
    "TrainedModel": "dml_train.trained.model",
    "bundled_recipes": "dml_train.recipe.bundled",
    "check_dataset": "dml_train.data",
    "check_recipe": "dml_train.training.run",
    "convert_checkpoints": "dml_train.training.conversion",
    "embed_folder": "dml_train.trained.folder",
    "embed_split": "dml_train.trained.evaluation",
    "evaluate_embeddings": "dml_train.trained.evaluation",
    "evaluate_run": "dml_train.trained.evaluation",
    "export": "dml_train.trained.export",
    "fetch_dataset": "dml_train.data",
    "find_leaks": "dml_train.trained.leaks",
    "inspect_images": "dml_train.data.inspection",
    "load_recipe": "dml_train.recipe.loading",
    "open_model": "dml_train.trained.model",
    "open_run": "dml_train.run_folder",
    "reality_check": "dml_train.studies.mlrc",
    "reproduce": "dml_train.studies.reproduce.run",
    "run_demo": "dml_train.demo",
    "tune": "dml_train.studies.tuning.run",
    "search": "dml_train.trained.search",
    "train": "dml_train.training.run",
    "write_report": "dml_train.report",
    "write_search_page": "dml_train.report.search_page",
    "write_side_by_side": "dml_train.report",
    "Embedder": "dml_train.trained.embedder",
    "EmbeddingPlan": "dml_train.trained.plan",
    "RayCluster": "dml_train.cluster.ray_cluster",
    "RayEngine": "dml_train.trained.ray_engine",
    "RayExecutor": "dml_train.cluster.ray_cluster",
    "Shard": "dml_train.trained.shards",
    "embed_images": "dml_train.trained.folder",
    "embed_shard": "dml_train.trained.shards",
    "join_shards": "dml_train.trained.shards",
    "open_images": "dml_train.trained.stored_images",
}

__all__ = [
    "Choice",
    "Embedder",
    "EmbeddingPlan",
    "FolderEmbedding",
    "Gallery",
    "Inspection",
    "Leak",
    "Range",
    "RayCluster",
    "RayEngine",
    "RayExecutor",
    "Recipe",
    "RunFolder",
    "SearchResult",
    "Shard",
    "TrainedModel",
    "TuningResult",
    "__version__",
    "bundled_recipes",
    "check_dataset",
    "check_recipe",
    "convert_checkpoints",
    "embed_folder",
    "embed_images",
    "embed_shard",
    "embed_split",
    "evaluate_embeddings",
    "evaluate_run",
    "export",
    "fetch_dataset",
    "find_leaks",
    "inspect_images",
    "join_shards",
    "load_recipe",
    "open_images",
    "open_model",
    "open_run",
    "reality_check",
    "reproduce",
    "run_demo",
    "search",
    "train",
    "tune",
    "write_report",
    "write_search_page",
    "write_side_by_side",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
