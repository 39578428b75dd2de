"""The plugin that `dml_core` finds through this package's entry point of the group ``dml``.

It names the losses' classes and imports none of them: listings stay fast without torch.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from dml_core import Component, hookimpl


@hookimpl
def dml_losses() -> Iterable[Component]:
    """Provide every loss of this package under its registry name.

    `GlobalBatch` has none: the trainer gathers the ranks' rows itself, and a recipe with it would gather them twice.
    """
    yield Component(
        "instance-cross-entropy",
        "dml_losses.instance_cross_entropy:InstanceCrossEntropy",
        "softmax of each positive against its anchor's negatives, reweighted for each anchor",
        source="Instance Cross Entropy for Deep Metric Learning, Eq. 3-15",
    )
    yield Component(
        "ranked-list",
        "dml_losses.ranked_list:RankedListLoss",
        "negatives beyond a boundary, positives inside a hypersphere, weighted by violation",
        source="Ranked List Loss for Deep Metric Learning, Eq. 8-14",
    )
    yield Component(
        "ranked-list-simpler",
        "dml_losses.ranked_list:RankedListLoss.simpler",
        "ranked list loss with its boundaries at 1 ± margin/2",
        source="Ranked List Loss for Deep Metric Learning, section 3.4",
    )
    yield Component(
        "recall-at-k-surrogate",
        "dml_losses.recall_at_k_surrogate:RecallAtKSurrogate",
        "recall at several cut-offs, with sigmoids for all steps",
        source="Patel et al. 2022, Recall@k Surrogate Loss with Large Batches and Similarity Mixup",
    )
    yield Component(
        "smooth-ap",
        "dml_losses.smooth_ap:SmoothAP",
        "average precision with sigmoids for steps",
        source="Brown et al. 2020, Smooth-AP",
    )
    yield Component(
        "sup-ap",
        "dml_losses.sup_ap:SupAP",
        "lower bound of average precision, whose gradient doesn't vanish for wrong ranks",
        source="Ramzi et al. 2021, Robust and Decomposable Average Precision for Image Retrieval",
    )
    yield Component(
        "sup-con",
        "dml_losses.sup_con:SupCon",
        "cross entropy of each positive of an anchor among all rows",
        source="Khosla et al. 2020, Supervised Contrastive Learning",
    )
    yield Component(
        "siglip",
        "dml_losses.siglip:SigLIP",
        "logistic loss of all pairs with a learned scale and bias",
        source="Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training",
    )
    yield Component(
        "norm-softmax",
        "dml_losses.norm_softmax:NormSoftmax",
        "softmax of cosines with class weights over a temperature",
        source="Making Classification Competitive for Deep Metric Learning, Eq. 5",
    )
    yield Component(
        "heated-up-softmax",
        "dml_losses.heated_up_softmax:HeatedUpSoftmax",
        "softmax of normalised inner products times alpha, which falls during training",
        source="Heated-Up Softmax Embedding, Eq. 1-3",
    )
    yield Component(
        "softmax",
        "dml_losses.softmax:Softmax",
        "plain softmax classification, without normalisation and bias",
        source="Learning with Memory-based Virtual Classes, Eq. 2",
    )
    yield Component(
        "virtual-softmax",
        "dml_losses.virtual_softmax:VirtualSoftmax",
        "softmax with one more class, in the direction of the embedding",
        source="Chen et al. 2018, Virtual Class Enhanced Discriminative Embedding Learning",
    )
    yield Component(
        "cos-face",
        "dml_losses.cos_face:CosFace",
        "softmax of scaled cosines with a margin subtracted from the true class's",
        source="Wang et al. 2018, CosFace, large margin cosine loss",
    )
    yield Component(
        "arc-face",
        "dml_losses.arc_face:ArcFace",
        "softmax of scaled cosines with a margin added to the true class's angle",
        source="Deng et al. 2019, ArcFace, Eq. 3",
    )
    yield Component(
        "sub-center-arc-face",
        "dml_losses.sub_center_arc_face:SubCenterArcFace",
        "ArcFace with several centres for each class, of which the nearest counts",
        source="Deng et al. 2020, Sub-center ArcFace",
    )
    yield Component(
        "ada-face",
        "dml_losses.ada_face:AdaFace",
        "softmax of scaled cosines with margins that follow the embedding's length",
        source="Kim et al. 2022, AdaFace, quality adaptive margin",
    )
    yield Component(
        "curricular-face",
        "dml_losses.curricular_face:CurricularFace",
        "ArcFace with hard negatives whose weight grows during training",
        source="Huang et al. 2020, CurricularFace, adaptive curriculum learning loss",
    )
    yield Component(
        "proxy-nca",
        "dml_losses.proxy_nca:ProxyNCA",
        "draws each embedding nearer to its class's proxy than to the others",
        source="Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies, NCA",
    )
    yield Component(
        "proxy-anchor",
        "dml_losses.proxy_anchor:ProxyAnchor",
        "each class's proxy against the batch, hardest first",
        source="Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning",
    )
    yield Component(
        "soft-triple",
        "dml_losses.soft_triple:SoftTriple",
        "several centres for each class, softly assigned and drawn together",
        source="Qian et al. 2019, SoftTriple Loss",
    )
    yield Component(
        "memvir",
        "dml_losses.memvir:MemVir",
        "a class loss with earlier steps' embeddings and class weights as virtual classes",
        source="Learning with Memory-based Virtual Classes, Eq. 4-5 and Algorithm 1",
    )
    yield Component(
        "matryoshka",
        "dml_losses.matryoshka:Matryoshka",
        "a loss of nested prefixes of the embedding, each of which then serves alone",
        source="Kusupati et al. 2022, Matryoshka Representation Learning, MRL-E",
    )
    yield Component(
        "cross-batch-memory",
        "dml_losses.cross_batch_memory:CrossBatchMemory",
        "a pair loss that also compares with the embeddings of earlier batches",
        source="Wang et al. 2020, Cross-Batch Memory for Embedding Learning",
    )
    yield Component(
        "broad-face",
        "dml_losses.broad_face:BroadFace",
        "a class loss whose class weights also learn from a queue of past embeddings",
        source="Kim et al. 2020, BroadFace",
    )
    yield Component(
        "sampled-classes",
        "dml_losses.sampled_classes:SampledClasses",
        "a class loss over the batch's classes and a random choice of the others, with a sparse gradient",
        source="Making Classification Competitive for Deep Metric Learning, section 4.3; An et al. 2021, Partial FC",
    )
    yield Component(
        "sharded-classes",
        "dml_losses.ranks.sharded_classes:ShardedClasses",
        "a class loss of which each rank keeps the class weights of its own classes",
        source="An et al. 2021, Partial FC, section 3.1",
        deferred=["loss"],  # made by ShardedClasses, so that each rank draws its own rows
    )
    yield from _pytorch_metric_learning()


# Classes of pytorch_metric_learning.losses that aren't losses of embeddings and labels.
_NO_LOSSES = (
    "BaseLossWrapper",
    "BaseMetricLossFunction",
    "CrossBatchMemory",
    "EmbeddingRegularizerMixin",
    "GenericPairLoss",
    "MultipleLosses",
    "SelfSupervisedLoss",
    "WeightRegularizerMixin",
)


def _pytorch_metric_learning() -> Iterator[Component]:
    """Yield ``pml/<ClassName>`` for every loss of pytorch-metric-learning, if that is installed (extra ``pml``).

    The names are read from the library's list of imports: importing it takes seconds.
    """
    found = importlib.util.find_spec("pytorch_metric_learning")
    if found is None or found.origin is None:
        return
    listing = Path(found.origin).with_name("losses") / "__init__.py"
    for statement in ast.parse(listing.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            for name in (alias.name for alias in statement.names):
                if name not in _NO_LOSSES:
                    yield Component(
                        f"pml/{name}",
                        f"dml_losses.pml:{name}",
                        f"{name} of pytorch-metric-learning",
                        source="pytorch-metric-learning",
                    )
