"""The losses as pure functions of tensors, one file for each, on one similarity product."""

from dml_losses.functional.ada_face import ada_face
from dml_losses.functional.arc_face import arc_face
from dml_losses.functional.cos_face import cos_face
from dml_losses.functional.curricular_face import curricular_face
from dml_losses.functional.heated_up_softmax import heated_up_softmax
from dml_losses.functional.instance_cross_entropy import instance_cross_entropy
from dml_losses.functional.norm_softmax import norm_softmax
from dml_losses.functional.proxy_anchor import proxy_anchor
from dml_losses.functional.proxy_nca import proxy_nca
from dml_losses.functional.ranked_list import ranked_list
from dml_losses.functional.recall_at_k_surrogate import recall_at_k_surrogate
from dml_losses.functional.siglip import siglip
from dml_losses.functional.smooth_ap import smooth_ap
from dml_losses.functional.soft_triple import soft_triple
from dml_losses.functional.softmax import softmax, virtual_softmax
from dml_losses.functional.sub_center_arc_face import sub_center_arc_face
from dml_losses.functional.sup_ap import sup_ap
from dml_losses.functional.sup_con import sup_con

__all__ = [
    "ada_face",
    "arc_face",
    "cos_face",
    "curricular_face",
    "heated_up_softmax",
    "instance_cross_entropy",
    "norm_softmax",
    "proxy_anchor",
    "proxy_nca",
    "ranked_list",
    "recall_at_k_surrogate",
    "siglip",
    "smooth_ap",
    "soft_triple",
    "softmax",
    "sub_center_arc_face",
    "sup_ap",
    "sup_con",
    "virtual_softmax",
]
