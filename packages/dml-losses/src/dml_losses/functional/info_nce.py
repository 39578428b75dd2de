"""InfoNCE: each row must find its partner among all rows of the other side, with a learned
temperature.

Shapes: `B` batch (the anchors), `G` gallery, `D` dim, `R` anchors per block.
"""

from __future__ import annotations

import torch

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block
from dml_losses.functional.sphere import full_precision
from dml_losses.functional.sup_con import cross_entropy


def info_nce(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    log_scale: torch.Tensor,
    symmetric: bool = True,
    over_ranks: bool = False,
) -> torch.Tensor:
    """Compute the cross entropy of a softmax over the other side's rows, at each row's partner.

    L = ½·(l(X, G) + l(G, X)) if symmetric, else l(X, G)
    l(X, G) = mean_a −1/|P_a| · Σ_{i ∈ P_a} log( exp(t·s_ai) / Σ_j exp(t·s_aj) ),  t = exp(t')

    where s are cosines, P_a are the rows of G with the label of a, and j runs over all rows of G;
    t' is learned.

    Source: van den Oord et al. 2018, Representation Learning with Contrastive Predictive Coding;
    Radford et al. 2021, Learning Transferable Visual Models From Natural Language Supervision
    (CLIP), for both sides and the temperature. Departures: the loss of an anchor with several
    partners is the mean over them, as in `sup_con`; the mean over anchors only includes anchors
    with a partner; without a gallery, a row of the batch is compared with all others.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. For two towers,
            pass the embeddings of one tower as embeddings, the other tower's as gallery, and equal
            labels for partners.
        log_scale: t', a floating scalar: the logarithm of the inverse temperature. It starts at
            log(1/0.07) in CLIP.
        symmetric: whether the gallery's rows must also find their partners, which computes the
            similarities twice; default true, as in CLIP. It has no effect without a gallery.
        over_ranks: compute 1/W of the pairs of a batch and gallery that all ranks have, with
            gradients as on one rank up to rounding. Ranks exchange two numbers per block of
            anchors, and the full gradients (B, D) and (G, D).

    Returns:
        The loss, a scalar; zero, with a zero gradient, if no anchor has a partner.
    """
    learned = full_precision(log_scale).reshape(1)
    value = _loss(embeddings, labels, gallery, gallery_labels, learned, over_ranks)
    if not symmetric or gallery is None or gallery_labels is None or not len(gallery):
        return value
    return (value + _loss(gallery, gallery_labels, embeddings, labels, learned, over_ranks)) / 2


def _terms(block: Block, learned: torch.Tensor) -> torch.Tensor:
    """Compute a block's share of the value, and of the derivative with respect to t', (2,)."""
    cosine_RG = block.similarity.clone()
    value = cross_entropy(block, learned[0].neg().exp())
    # The value is a function of t·s, so t·∂L/∂t = Σ s·∂L/∂s.
    return torch.stack((value, torch.dot(cosine_RG.flatten(), block.similarity.flatten())))


_loss = pair_operator("info_nce", "Tensor learned, bool over_ranks", _terms, num_learned=1)
