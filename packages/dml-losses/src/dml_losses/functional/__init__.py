"""Losses as pure functions of tensors, with a file per loss; they share the code of the similarity
product.

Class losses take embeddings, labels and class weights. Pair losses take embeddings and labels, and
can take a gallery with labels to compare with instead of the batch. A docstring only says what
differs from these arguments:

    embeddings: (B, D), any floating dtype; need not be normalised.
    labels: integers of shape (B,); in [0, C) for a class loss.
    class_weights: (C, D), any floating dtype, need not be normalised; or (C·K, D) with K
        consecutive centres per class. A softmax also takes the classes of a rank
        (`dml_core.ClassShard`), and a softmax of cosines also takes
        `dml_losses.functional.classes.Virtual` classes.
    gallery: (G, D), to compare with instead of the batch; it gets a gradient if it requires one.
    gallery_labels: integers of shape (G,).

A loss is a scalar in float32, or in float64 if either side is float64. A TypeError is raised if
embeddings, gallery or weights aren't floating, or labels aren't integers; a ValueError is raised if
shapes don't match, the batch is empty, a gallery has no labels, or (on CPU tensors) a label is
outside [0, C).
"""

from inspect import isfunction

from dml_losses.functional.ada_face import ada_face as ada_face
from dml_losses.functional.arc_face import arc_face as arc_face
from dml_losses.functional.contrastive import contrastive as contrastive
from dml_losses.functional.cos_face import cos_face as cos_face
from dml_losses.functional.curricular_face import curricular_face as curricular_face
from dml_losses.functional.heated_up_softmax import heated_up_softmax as heated_up_softmax
from dml_losses.functional.info_nce import info_nce as info_nce
from dml_losses.functional.instance_cross_entropy import (
    instance_cross_entropy as instance_cross_entropy,
)
from dml_losses.functional.koleo import koleo as koleo
from dml_losses.functional.multi_similarity import multi_similarity as multi_similarity
from dml_losses.functional.norm_softmax import norm_softmax as norm_softmax
from dml_losses.functional.proxy_anchor import proxy_anchor as proxy_anchor
from dml_losses.functional.proxy_nca import proxy_nca as proxy_nca
from dml_losses.functional.ranked_list import ranked_list as ranked_list
from dml_losses.functional.recall_at_k_surrogate import (
    recall_at_k_surrogate as recall_at_k_surrogate,
)
from dml_losses.functional.siglip import siglip as siglip
from dml_losses.functional.smooth_ap import smooth_ap as smooth_ap
from dml_losses.functional.soft_triple import soft_triple as soft_triple
from dml_losses.functional.softmax import softmax as softmax
from dml_losses.functional.softmax import virtual_softmax as virtual_softmax
from dml_losses.functional.sub_center_arc_face import sub_center_arc_face as sub_center_arc_face
from dml_losses.functional.sup_ap import sup_ap as sup_ap
from dml_losses.functional.sup_con import sup_con as sup_con
from dml_losses.functional.triplet import triplet as triplet

__all__ = [
    name for name, value in list(vars().items()) if isfunction(value) and name != "isfunction"
]
