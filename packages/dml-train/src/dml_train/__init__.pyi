# The public names and their modules. `__init__.py` reads this table, and imports a name when it is
# first used.
from dml_train.cluster.ray_cluster import RayCluster as RayCluster
from dml_train.cluster.ray_cluster import RayExecutor as RayExecutor
from dml_train.data.inspection import Inspection as Inspection
from dml_train.data.inspection import inspect_images as inspect_images
from dml_train.data.published.fetching import fetch_dataset as fetch_dataset
from dml_train.data.published.sets import check_dataset as check_dataset
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
from dml_train.studies.tuning.search import Choice as Choice
from dml_train.studies.tuning.search import Range as Range
from dml_train.trained.embedder import Embedder as Embedder
from dml_train.trained.evaluation import embed_split as embed_split
from dml_train.trained.evaluation import evaluate_embeddings as evaluate_embeddings
from dml_train.trained.evaluation import evaluate_run as evaluate_run
from dml_train.trained.export import export as export
from dml_train.trained.folder import embed_folder as embed_folder
from dml_train.trained.folder import embed_images as embed_images
from dml_train.trained.images import open_images as open_images
from dml_train.trained.leaks import Leak as Leak
from dml_train.trained.leaks import find_leaks as find_leaks
from dml_train.trained.model import TrainedModel as TrainedModel
from dml_train.trained.model import open_model as open_model
from dml_train.trained.plan import EmbeddingPlan as EmbeddingPlan
from dml_train.trained.plan import FolderEmbedding as FolderEmbedding
from dml_train.trained.ray_engine import RayEngine as RayEngine
from dml_train.trained.search import Gallery as Gallery
from dml_train.trained.search import SearchResult as SearchResult
from dml_train.trained.search import search as search
from dml_train.trained.shards import Shard as Shard
from dml_train.trained.shards import embed_shard as embed_shard
from dml_train.trained.shards import join_shards as join_shards
from dml_train.training.run import check_recipe as check_recipe
from dml_train.training.run import train as train

__version__: str
