"""Deep metric learning losses. A loss is one function of tensors (`dml_losses.functional`) and one thin module."""

import importlib.metadata

from dml_losses.arc_face import ArcFace
from dml_losses.broad_face import BroadFace
from dml_losses.cos_face import CosFace
from dml_losses.cross_batch_memory import CrossBatchMemory
from dml_losses.curricular_face import CurricularFace
from dml_losses.heated_up_softmax import HeatedUpSoftmax
from dml_losses.instance_cross_entropy import InstanceCrossEntropy
from dml_losses.memvir import MemVir
from dml_losses.norm_softmax import NormSoftmax
from dml_losses.proxy_anchor import ProxyAnchor
from dml_losses.proxy_nca import ProxyNCA
from dml_losses.ranked_list import RankedListLoss
from dml_losses.ranks.global_batch import GlobalBatch
from dml_losses.ranks.sharded_classes import ShardedClasses
from dml_losses.soft_triple import SoftTriple
from dml_losses.softmax import Softmax
from dml_losses.virtual_softmax import VirtualSoftmax

__version__ = importlib.metadata.version("dml-losses")

__all__ = [
    "ArcFace",
    "BroadFace",
    "CosFace",
    "CrossBatchMemory",
    "CurricularFace",
    "GlobalBatch",
    "HeatedUpSoftmax",
    "InstanceCrossEntropy",
    "MemVir",
    "NormSoftmax",
    "ProxyAnchor",
    "ProxyNCA",
    "RankedListLoss",
    "ShardedClasses",
    "SoftTriple",
    "Softmax",
    "VirtualSoftmax",
    "__version__",
]
