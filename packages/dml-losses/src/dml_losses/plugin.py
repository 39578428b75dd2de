"""The plugin of this package, which `dml_core` finds through an entry point of the group ``dml``.

It names the classes of losses but doesn't import them, so that listings stay fast and don't load
torch.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from dml_core import Component, hookimpl

# Name, class, summary and source of each loss. Don't add `GlobalBatch`: the trainer already gathers
# the ranks' rows, and a recipe with it would gather them twice.
_LOSSES = (
    ("instance-cross-entropy", "InstanceCrossEntropy",
     "softmax of each positive against its anchor's negatives, reweighted for each anchor",
     "Instance Cross Entropy for Deep Metric Learning, Eq. 3-15"),
    ("ranked-list", "RankedListLoss",
     "negatives beyond a boundary, positives inside a hypersphere, weighted by violation",
     "Ranked List Loss for Deep Metric Learning, Eq. 8-14"),
    ("ranked-list-simpler", "RankedListLoss.simpler",
     "ranked list loss with its boundaries at 1 ± margin/2",
     "Ranked List Loss for Deep Metric Learning, section 3.4"),
    ("triplet", "Triplet",
     "positives nearer to the anchor than negatives, by a margin: batch hard, all or semi-hard",
     "Hermans et al. 2017, In Defense of the Triplet Loss; Schroff et al. 2015, FaceNet"),
    ("contrastive", "Contrastive",
     "positives drawn together, negatives pushed apart up to a margin",
     "Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping"),
    ("multi-similarity", "MultiSimilarity",
     "the hardest pairs of a query, selected and weighted by their similarity",
     "Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting"),
    ("recall-at-k-surrogate", "RecallAtKSurrogate",
     "recall at several cut-offs, with sigmoids for all steps",
     "Patel et al. 2022, Recall@k Surrogate Loss with Large Batches and Similarity Mixup"),
    ("smooth-ap", "SmoothAP", "average precision with sigmoids for steps",
     "Brown et al. 2020, Smooth-AP"),
    ("sup-ap", "SupAP",
     "lower bound of average precision, whose gradient doesn't vanish for wrong ranks",
     "Ramzi et al. 2021, Robust and Decomposable Average Precision for Image Retrieval"),
    ("sup-con", "SupCon", "cross entropy of a softmax over all rows, at the positives of an anchor",
     "Khosla et al. 2020, Supervised Contrastive Learning"),
    ("siglip", "SigLIP", "logistic loss of all pairs with a learned scale and bias",
     "Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training"),
    ("info-nce", "InfoNCE",
     "cross entropy of a softmax over the other side's rows, at each row's partner, as in CLIP",
     "van den Oord et al. 2018, Contrastive Predictive Coding; Radford et al. 2021, CLIP"),
    ("koleo", "KoLeo", "regulariser that keeps each embedding away from its nearest neighbour",
     "Sablayrolles et al. 2019, Spreading vectors for similarity search"),
    ("norm-softmax", "NormSoftmax", "softmax of cosines with class weights over a temperature",
     "Making Classification Competitive for Deep Metric Learning, Eq. 5"),
    ("heated-up-softmax", "HeatedUpSoftmax",
     "softmax of normalised inner products times alpha, which falls during training",
     "Heated-Up Softmax Embedding, Eq. 1-3"),
    ("softmax", "Softmax", "plain softmax classification, without normalisation and bias",
     "Learning with Memory-based Virtual Classes, Eq. 2"),
    ("virtual-softmax", "VirtualSoftmax",
     "softmax with one more class, in the direction of the embedding",
     "Chen et al. 2018, Virtual Class Enhanced Discriminative Embedding Learning"),
    ("cos-face", "CosFace",
     "softmax of scaled cosines with a margin subtracted from the true class's",
     "Wang et al. 2018, CosFace, large margin cosine loss"),
    ("arc-face", "ArcFace",
     "softmax of scaled cosines with a margin added to the true class's angle",
     "Deng et al. 2019, ArcFace, Eq. 3"),
    ("sub-center-arc-face", "SubCenterArcFace",
     "ArcFace with multiple centres per class, using only the nearest centre",
     "Deng et al. 2020, Sub-center ArcFace"),
    ("ada-face", "AdaFace",
     "softmax of scaled cosines with margins that follow the embedding's length",
     "Kim et al. 2022, AdaFace, quality adaptive margin"),
    ("curricular-face", "CurricularFace",
     "ArcFace with hard negatives whose weight grows during training",
     "Huang et al. 2020, CurricularFace, adaptive curriculum learning loss"),
    ("proxy-nca", "ProxyNCA",
     "draws each embedding nearer to the proxy of its class than to other proxies",
     "Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies, NCA"),
    ("proxy-anchor", "ProxyAnchor", "each class's proxy against the batch, hardest first",
     "Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning"),
    ("soft-triple", "SoftTriple", "multiple centres per class, softly assigned and drawn together",
     "Qian et al. 2019, SoftTriple Loss"),
    ("sum", "SumOfLosses", "a weighted sum of losses of the same batch, each with a name",
     "Luo et al. 2019, Bag of Tricks and a Strong Baseline for Deep Person Re-identification"),
    ("memvir", "MemVir",
     "a class loss with earlier steps' embeddings and class weights as virtual classes",
     "Learning with Memory-based Virtual Classes, Eq. 4-5 and Algorithm 1"),
    ("matryoshka", "Matryoshka",
     "a loss over nested prefixes of the embedding, so that each prefix can be used separately",
     "Kusupati et al. 2022, Matryoshka Representation Learning, MRL-E"),
    ("cross-batch-memory", "CrossBatchMemory",
     "a pair loss that also compares with the embeddings of earlier batches",
     "Wang et al. 2020, Cross-Batch Memory for Embedding Learning"),
    ("broad-face", "BroadFace",
     "a class loss whose class weights also learn from a queue of past embeddings",
     "Kim et al. 2020, BroadFace"),
    ("sampled-classes", "SampledClasses",
     "a class loss over the batch's classes and a random choice of the others, with a sparse "
     "gradient",
     "Making Classification Competitive for Deep Metric Learning, section 4.3; An et al. 2021, "
     "Partial FC"),
)  # fmt: skip


@hookimpl
def dml_losses() -> Iterable[Component]:
    """Provide the losses of this package and of pytorch-metric-learning under their registry
    names.
    """
    for name, cls, summary, source in _LOSSES:
        yield Component(name, f"dml_losses:{cls}", summary, source)
    yield Component(
        "sharded-classes",
        "dml_losses:ShardedClasses",
        "a class loss whose class weights are divided over the ranks",
        source="An et al. 2021, Partial FC, section 3.1",
        deferred=["loss"],  # ShardedClasses makes the loss, so that each rank only draws its rows
    )
    yield from _pytorch_metric_learning()


# Classes other than Base… whose names end in Loss, but which aren't losses of embeddings and
# labels.
_NO_LOSSES = ("GenericPairLoss", "SelfSupervisedLoss")


def _pytorch_metric_learning() -> Iterator[Component]:
    """Yield ``pml/<ClassName>`` for each loss of pytorch-metric-learning, if it is installed (extra
    ``pml``).

    Names are read from the library's list of imports, since importing the library takes seconds.
    """
    found = importlib.util.find_spec("pytorch_metric_learning")
    if found is None or found.origin is None:
        return
    listing = Path(found.origin).with_name("losses") / "__init__.py"
    for statement in ast.parse(listing.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            for name in (alias.name for alias in statement.names):
                if name.endswith("Loss") and not name.startswith("Base") and name not in _NO_LOSSES:
                    yield Component(
                        f"pml/{name}",
                        f"dml_losses.pml:{name}",
                        f"{name} of pytorch-metric-learning",
                        source="pytorch-metric-learning",
                    )
