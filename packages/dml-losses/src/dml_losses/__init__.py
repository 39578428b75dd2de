"""Deep metric learning losses. A loss is one function of tensors (`dml_losses.functional`) and one thin module.

A name is imported at its first use, so that importing the package stays fast.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dml_losses.ada_face import AdaFace
    from dml_losses.arc_face import ArcFace
    from dml_losses.broad_face import BroadFace
    from dml_losses.cos_face import CosFace
    from dml_losses.cross_batch_memory import CrossBatchMemory
    from dml_losses.curricular_face import CurricularFace
    from dml_losses.heated_up_softmax import HeatedUpSoftmax
    from dml_losses.instance_cross_entropy import InstanceCrossEntropy
    from dml_losses.matryoshka import Matryoshka
    from dml_losses.memvir import MemVir
    from dml_losses.norm_softmax import NormSoftmax
    from dml_losses.proxy_anchor import ProxyAnchor
    from dml_losses.proxy_nca import ProxyNCA
    from dml_losses.ranked_list import RankedListLoss
    from dml_losses.ranks.global_batch import GlobalBatch
    from dml_losses.ranks.sharded_classes import ShardedClasses
    from dml_losses.recall_at_k_surrogate import RecallAtKSurrogate
    from dml_losses.siglip import SigLIP
    from dml_losses.smooth_ap import SmoothAP
    from dml_losses.soft_triple import SoftTriple
    from dml_losses.softmax import Softmax
    from dml_losses.sub_center_arc_face import SubCenterArcFace
    from dml_losses.sup_ap import SupAP
    from dml_losses.sup_con import SupCon
    from dml_losses.virtual_softmax import VirtualSoftmax

__version__ = version("dml-losses")

_HOMES = {
    "AdaFace": "dml_losses.ada_face",
    "ArcFace": "dml_losses.arc_face",
    "BroadFace": "dml_losses.broad_face",
    "CosFace": "dml_losses.cos_face",
    "CrossBatchMemory": "dml_losses.cross_batch_memory",
    "CurricularFace": "dml_losses.curricular_face",
    "GlobalBatch": "dml_losses.ranks.global_batch",
    "HeatedUpSoftmax": "dml_losses.heated_up_softmax",
    "InstanceCrossEntropy": "dml_losses.instance_cross_entropy",
    "Matryoshka": "dml_losses.matryoshka",
    "MemVir": "dml_losses.memvir",
    "NormSoftmax": "dml_losses.norm_softmax",
    "ProxyAnchor": "dml_losses.proxy_anchor",
    "ProxyNCA": "dml_losses.proxy_nca",
    "RankedListLoss": "dml_losses.ranked_list",
    "RecallAtKSurrogate": "dml_losses.recall_at_k_surrogate",
    "ShardedClasses": "dml_losses.ranks.sharded_classes",
    "SigLIP": "dml_losses.siglip",
    "SmoothAP": "dml_losses.smooth_ap",
    "SoftTriple": "dml_losses.soft_triple",
    "Softmax": "dml_losses.softmax",
    "SubCenterArcFace": "dml_losses.sub_center_arc_face",
    "SupAP": "dml_losses.sup_ap",
    "SupCon": "dml_losses.sup_con",
    "VirtualSoftmax": "dml_losses.virtual_softmax",
}

__all__ = [
    "AdaFace",
    "ArcFace",
    "BroadFace",
    "CosFace",
    "CrossBatchMemory",
    "CurricularFace",
    "GlobalBatch",
    "HeatedUpSoftmax",
    "InstanceCrossEntropy",
    "Matryoshka",
    "MemVir",
    "NormSoftmax",
    "ProxyAnchor",
    "ProxyNCA",
    "RankedListLoss",
    "RecallAtKSurrogate",
    "ShardedClasses",
    "SigLIP",
    "SmoothAP",
    "SoftTriple",
    "Softmax",
    "SubCenterArcFace",
    "SupAP",
    "SupCon",
    "VirtualSoftmax",
    "__version__",
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
