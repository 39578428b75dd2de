"""Proxy anchor: each class's proxy compared with the batch.

Shapes: `B` batch, `C` classes, `D` dim, `R` classes per block, `P` rows of the batch that can
belong to these classes.
"""

from __future__ import annotations

import torch

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.pair_operators import similarity_operator
from dml_losses.functional.pairs import Block
from dml_losses.functional.sphere import both_double


def proxy_anchor(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    *,
    scale: float = 32.0,
    margin: float = 0.1,
) -> torch.Tensor:
    """Compute the loss that pulls the batch's hardest positives to their proxy, and pushes the
    hardest negatives away.

    L = 1/|P⁺| · Σ_{p ∈ P⁺} log(1 + Σ_{x ∈ X_p⁺} e^{−α(s(x,p) − δ)})
      + 1/|P| · Σ_{p ∈ P} log(1 + Σ_{x ∈ X_p⁻} e^{α(s(x,p) + δ)})

    where s is the cosine, P are all proxies, and P⁺ are the proxies with a positive in the batch.

    Source: Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning. No departure.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D), the proxies; see
            `dml_losses.functional`.
        scale: α > 0; default 32, as in the paper.
        margin: δ ≥ 0; default 0.1, as in the paper.

    Returns:
        The loss, a scalar. If the batch has only one class, its proxy has no negatives and adds
        zero to the second sum.
    """
    check_batch(embeddings, labels)
    check_class_weights(embeddings, labels, class_weights)
    weights_CD, features_BD = both_double(class_weights, embeddings)
    gradients = torch.is_grad_enabled()
    return _loss(
        weights_CD,
        torch.arange(weights_CD.shape[0], device=labels.device),
        features_BD,
        labels.long(),
        False,
        gradients and weights_CD.requires_grad,
        gradients and features_BD.requires_grad,
        scale,
        margin,
    )


def _terms(block: Block, scale: float, margin: float) -> torch.Tensor:
    similarity_RB = block.similarity
    positive_RP = (
        similarity_RB[:, block.columns]
        .sub(margin)
        .mul_(-scale)
        .masked_fill_(~block.same, -torch.inf)
    )
    negative_RB = similarity_RB.add_(margin).mul_(scale)
    negative_RB[:, block.columns].masked_fill_(block.same, -torch.inf)
    value_N = softplus_of_logsumexp(negative_RB)
    value_P = softplus_of_logsumexp(positive_RP)
    negative_RB.mul_(scale / block.num_queries)
    negative_RB[:, block.columns] -= positive_RP.mul_(scale / block.num_matched)
    return value_P / block.num_matched + value_N / block.num_queries


def softplus_of_logsumexp(logits: torch.Tensor) -> torch.Tensor:
    """Compute Σ over rows of log(1 + Σ e^z), and overwrite the logits with the derivatives e^z /
    (1 + Σ e^z).
    """
    highest = logits.amax(dim=1, keepdim=True).clamp_min_(0)
    total = logits.sub_(highest).exp_().sum(dim=1, keepdim=True).add_(highest.neg().exp_())
    logits.div_(total)
    return (highest + total.log_()).sum()


# A proxy has few positives per batch, so that even in large blocks, few columns contain positives.
_loss = similarity_operator(
    "proxy_anchor", "float scale, float margin", _terms, queries_ordered=True, cpu_block_rows=512
)
