"""KoLeo: keep each embedding away from its nearest neighbour.

Shapes: `Q` queries, `G` gallery, `R` queries per block, `D` dim.
"""

from __future__ import annotations

import torch

from dml_losses.functional.pair_operators import pair_inputs
from dml_losses.functional.sphere import full_precision, unit_rows

_EPSILON = 1e-8
_BLOCK_ELEMENTS = 2**22  # number of similarities per block


def koleo(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the KoLeo regulariser, which spreads embeddings over the sphere.

    L = −1/B · Σ_i log(min_{j≠i} ‖x̂_i − x̂_j‖ + ε),  ε = 1e-8

    Up to constants, −L is Kozachenko and Leonenko's estimate of the entropy of the embeddings'
    distribution.

    Source: Sablayrolles et al. 2019, Spreading vectors for similarity search; ε as in DINOv2 (Oquab
    et al. 2023). Departure: equal rows get no gradient, since the direction between them is
    undefined.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. The labels have no
            influence.

    Returns:
        The loss, a scalar; zero, with a zero gradient, if there is no neighbour.
    """
    queries, _, others, _ = pair_inputs(embeddings, labels, gallery, gallery_labels)
    within = gallery is None
    with torch.autocast(queries.device.type, enabled=False):
        query_QD = unit_rows(full_precision(queries))
        gallery_GD = query_QD if within else unit_rows(full_precision(others))
        if len(gallery_GD) <= int(within):
            return query_QD.sum() * 0
        nearest_Q = _nearest(query_QD.detach(), gallery_GD.detach(), within)
        distance_Q = torch.linalg.vector_norm(query_QD - gallery_GD[nearest_Q], dim=1)
        value: torch.Tensor = -(distance_Q + _EPSILON).log().mean()
    return value


@torch.library.custom_op("dml_losses::nearest", mutates_args=())
def _nearest(query_QD: torch.Tensor, gallery_GD: torch.Tensor, within: bool) -> torch.Tensor:
    """Find the gallery row with the largest inner product per query, (Q,); within a batch, except
    the query itself.
    """
    step = max(1, _BLOCK_ELEMENTS // len(gallery_GD))
    found = []
    for start in range(0, len(query_QD), step):
        product_RG = query_QD[start : start + step] @ gallery_GD.T
        if within:
            product_RG.diagonal(start).fill_(-torch.inf)
        found.append(product_RG.argmax(dim=1))
    return torch.cat(found)


@_nearest.register_fake
def _(query_QD: torch.Tensor, gallery_GD: torch.Tensor, within: bool) -> torch.Tensor:
    return query_QD.new_empty(len(query_QD), dtype=torch.int64)
