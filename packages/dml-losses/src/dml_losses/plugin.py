"""The losses as a plugin: what `dml_core` finds through the entry point of the group ``dml``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from dml_core import Component, hookimpl
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
from dml_losses.sharded_classes import ShardedClasses
from dml_losses.soft_triple import SoftTriple
from dml_losses.softmax import Softmax
from dml_losses.virtual_softmax import VirtualSoftmax


@hookimpl
def dml_losses() -> Iterable[Component]:
    """Every loss of this package, by its registry name.

    `GlobalBatch` has none: a recipe's trainer gathers the ranks' rows itself, and would have them twice.
    """
    yield Component(
        "instance-cross-entropy",
        InstanceCrossEntropy,
        "softmax of each positive against its anchor's negatives, reweighted per anchor",
        source="Instance Cross Entropy for Deep Metric Learning, Eq. 3-15",
    )
    yield Component(
        "ranked-list",
        RankedListLoss,
        "negatives beyond a boundary, positives inside a hypersphere, weighted by violation",
        source="Ranked List Loss for Deep Metric Learning, Eq. 8-14",
    )
    yield Component(
        "ranked-list-simpler",
        RankedListLoss.simpler,
        "ranked list loss with its boundaries at 1 ± margin/2",
        source="Ranked List Loss for Deep Metric Learning, section 3.4",
    )
    yield Component(
        "norm-softmax",
        NormSoftmax,
        "softmax of cosines with class weights over a temperature",
        source="Making Classification Competitive for Deep Metric Learning, Eq. 5",
    )
    yield Component(
        "heated-up-softmax",
        HeatedUpSoftmax,
        "softmax of normalised inner products times alpha, which falls during training",
        source="Heated-Up Softmax Embedding, Eq. 1-3",
    )
    yield Component(
        "softmax",
        Softmax,
        "plain softmax classification, nothing normalised and no bias",
        source="Learning with Memory-based Virtual Classes, Eq. 2",
    )
    yield Component(
        "virtual-softmax",
        VirtualSoftmax,
        "softmax with one more class, that lies where the embedding does",
        source="Chen et al. 2018, Virtual Class Enhanced Discriminative Embedding Learning",
    )
    yield Component(
        "cos-face",
        CosFace,
        "softmax of scaled cosines with a margin off the true class's cosine",
        source="Wang et al. 2018, CosFace, large margin cosine loss",
    )
    yield Component(
        "arc-face",
        ArcFace,
        "softmax of scaled cosines with a margin on the true class's angle",
        source="Deng et al. 2019, ArcFace, Eq. 3",
    )
    yield Component(
        "curricular-face",
        CurricularFace,
        "ArcFace whose hard negatives weigh more the further training has come",
        source="Huang et al. 2020, CurricularFace, adaptive curriculum learning loss",
    )
    yield Component(
        "proxy-nca",
        ProxyNCA,
        "each embedding nearer its own class's proxy than the others'",
        source="Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies, NCA",
    )
    yield Component(
        "proxy-anchor",
        ProxyAnchor,
        "each class's proxy against the batch, hardest first",
        source="Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning",
    )
    yield Component(
        "soft-triple",
        SoftTriple,
        "several centres a class, softly assigned and drawn together",
        source="Qian et al. 2019, SoftTriple Loss",
    )
    yield Component(
        "memvir",
        MemVir,
        "a class loss with earlier steps' embeddings and class weights as virtual classes",
        source="Learning with Memory-based Virtual Classes, Eq. 4-5 and Algorithm 1",
    )
    yield Component(
        "cross-batch-memory",
        CrossBatchMemory,
        "a pair loss against the embeddings of earlier batches as well",
        source="Wang et al. 2020, Cross-Batch Memory for Embedding Learning",
    )
    yield Component(
        "broad-face",
        BroadFace,
        "a class loss whose class weights see a queue of past embeddings as well",
        source="Kim et al. 2020, BroadFace",
    )
    yield Component(
        "sharded-classes",
        ShardedClasses,
        "a class loss of which each rank keeps the class weights of its own classes",
        source="An et al. 2021, Partial FC, section 3.1",
    )
    if importlib.util.find_spec("pytorch_metric_learning") is not None:  # the extra dml-losses[pml]
        from dml_losses import pml

        yield from pml.components()
