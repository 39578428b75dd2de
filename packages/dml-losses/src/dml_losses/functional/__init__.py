"""The losses as pure functions of tensors, one file for each, on one similarity product.

Class losses take embeddings, labels and class weights. Pair losses take embeddings and labels, and a gallery with
labels to compare with instead of the batch. Each docstring says what differs from this:

    embeddings: (B, D), any floating dtype, not necessarily normalised.
    labels: (B,), integer; of a class loss in [0, C).
    class_weights: (C, D), any floating dtype, not necessarily normalised; (C·K, D) with K centres for each class, which
        are consecutive. Softmaxes also take the classes of a rank (`dml_core.ClassShard`), those of cosines
        `dml_losses.functional.classes.Virtual` ones, too.
    gallery: (G, D), compared with instead of the batch; it gets a gradient if it requires one.
    gallery_labels: (G,), integer.

A loss is a scalar in float32, in float64 if either side is float64. It raises a TypeError for embeddings, gallery or
weights that aren't floating, or labels that aren't integers; a ValueError for shapes that don't fit, an empty batch, a
gallery without labels, or (on CPU tensors) a label outside [0, C).
"""

from inspect import isfunction

from dml_losses.functional.ada_face import ada_face as ada_face
from dml_losses.functional.arc_face import arc_face as arc_face
from dml_losses.functional.cos_face import cos_face as cos_face
from dml_losses.functional.curricular_face import curricular_face as curricular_face
from dml_losses.functional.heated_up_softmax import heated_up_softmax as heated_up_softmax
from dml_losses.functional.instance_cross_entropy import instance_cross_entropy as instance_cross_entropy
from dml_losses.functional.norm_softmax import norm_softmax as norm_softmax
from dml_losses.functional.proxy_anchor import proxy_anchor as proxy_anchor
from dml_losses.functional.proxy_nca import proxy_nca as proxy_nca
from dml_losses.functional.ranked_list import ranked_list as ranked_list
from dml_losses.functional.recall_at_k_surrogate import recall_at_k_surrogate as recall_at_k_surrogate
from dml_losses.functional.siglip import siglip as siglip
from dml_losses.functional.smooth_ap import smooth_ap as smooth_ap
from dml_losses.functional.soft_triple import soft_triple as soft_triple
from dml_losses.functional.softmax import softmax as softmax
from dml_losses.functional.softmax import virtual_softmax as virtual_softmax
from dml_losses.functional.sub_center_arc_face import sub_center_arc_face as sub_center_arc_face
from dml_losses.functional.sup_ap import sup_ap as sup_ap
from dml_losses.functional.sup_con import sup_con as sup_con

__all__ = [name for name, value in list(vars().items()) if isfunction(value) and name != "isfunction"]
