# The public names and modules. `__init__.py` reads this table, and imports a name when it is first
# used.
from dml_eval_rs.clustering import KMeans as KMeans
from dml_eval_rs.clustering import ami as ami
from dml_eval_rs.clustering import ari as ari
from dml_eval_rs.clustering import kmeans as kmeans
from dml_eval_rs.clustering import nmi as nmi
from dml_eval_rs.inputs.conversion import concatenate_blocks as concatenate_blocks
from dml_eval_rs.inputs.files import load_array as load_array
from dml_eval_rs.matches.labels import Labels as Labels
from dml_eval_rs.matches.matching import Matching as Matching
from dml_eval_rs.matches.relevance import Relevance as Relevance
from dml_eval_rs.matches.relevance import relevance_from_labels as relevance_from_labels
from dml_eval_rs.metrics.comparison import Comparison as Comparison
from dml_eval_rs.metrics.comparison import ComparisonTable as ComparisonTable
from dml_eval_rs.metrics.comparison import Interval as Interval
from dml_eval_rs.metrics.comparison import compare as compare
from dml_eval_rs.metrics.evaluation import Evaluation as Evaluation
from dml_eval_rs.metrics.names import METRICS as METRICS
from dml_eval_rs.peers import Peers as Peers
from dml_eval_rs.reranking import expand_queries as expand_queries
from dml_eval_rs.reranking import rerank as rerank
from dml_eval_rs.retrieval import evaluate as evaluate
from dml_eval_rs.retrieval import evaluate_levels as evaluate_levels
from dml_eval_rs.retrieval import evaluate_ties as evaluate_ties
from dml_eval_rs.search import IndexRecall as IndexRecall
from dml_eval_rs.search import binarize as binarize
from dml_eval_rs.search import hard_negatives as hard_negatives
from dml_eval_rs.search import index_recall as index_recall
from dml_eval_rs.search import knn as knn
from dml_eval_rs.search import knn_classify as knn_classify
from dml_eval_rs.search import range_search as range_search
from dml_eval_rs.search import top_pairs as top_pairs
from dml_eval_rs.shards.evaluation import evaluate_shards as evaluate_shards
from dml_eval_rs.shards.search import knn_shards as knn_shards
from dml_eval_rs.shards.verification import verify_shards as verify_shards
from dml_eval_rs.verification.result import Roc as Roc
from dml_eval_rs.verification.result import Verification as Verification
from dml_eval_rs.verification.verify import OpenSet as OpenSet
from dml_eval_rs.verification.verify import open_set as open_set
from dml_eval_rs.verification.verify import verify as verify

__all__: list[str]
__version__: str
