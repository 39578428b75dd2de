"""Slow references for the losses: the equations as loops over float64 numbers. They must not use
the package's code.

If a paper defines the gradient, a second function returns the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def unit(rows: Tensor) -> Tensor:
    return torch.stack([row / row.norm() if row.norm() > 0 else row * 0 for row in rows])


def through_the_norm(rows: Tensor, unit_gradient: Tensor) -> Tensor:
    """Compute ∂L/∂x from ∂L/∂x̂: (I − x̂x̂ᵀ)/‖x‖ · ∂L/∂x̂."""
    result = torch.zeros_like(rows)
    for i, row in enumerate(rows):
        norm = row.norm()
        if norm > 0:
            direction = row / norm
            result[i] = (unit_gradient[i] - direction * (direction @ unit_gradient[i])) / norm
    return result


def sides(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return unit rows of the batch and the gallery, the gallery's labels, and whether the batch is
    the gallery.
    """
    f = unit(embeddings)
    g_labels = labels if gallery_labels is None else gallery_labels
    return f, f if gallery is None else unit(gallery), g_labels, gallery is None


def cross_entropy(logits: list[list[Tensor]], labels: Tensor) -> Tensor:
    """Average −log softmax(row)_y over the rows of logits."""
    terms = [
        torch.logsumexp(torch.stack(row), 0) - row[y] for row, y in zip(logits, labels.tolist())
    ]
    return torch.stack(terms).mean()


def cosine_lists(embeddings: Tensor, class_weights: Tensor) -> list[list[Tensor]]:
    x, w = unit(embeddings), unit(class_weights)
    return [[row @ weight for weight in w] for row in x]


def positives_and_negatives(
    anchor: int, labels: Tensor, gallery_labels: Tensor, within: bool
) -> tuple[list[int], list[int]]:
    positives = [
        i
        for i in range(len(gallery_labels))
        if gallery_labels[i] == labels[anchor] and not (within and i == anchor)
    ]
    negatives = [j for j in range(len(gallery_labels)) if gallery_labels[j] != labels[anchor]]
    return positives, negatives


def instance_cross_entropy_value(
    embeddings: Tensor, labels: Tensor, scale: float, *gallery: Tensor
) -> Tensor:
    """Average −log p̂ over pairs: Eq. 3 with the scale of Eq. 11; differentiable."""
    f, g, g_labels, within = sides(embeddings, labels, *gallery)
    terms = []
    for a in range(len(f)):
        positives, negatives = positives_and_negatives(a, labels, g_labels, within)
        for i in positives:
            logits = torch.stack(
                [scale * (f[a] @ g[i])] + [scale * (f[a] @ g[j]) for j in negatives]
            )
            terms.append(torch.logsumexp(logits, 0) - logits[0])
    return torch.stack(terms).mean() if terms else embeddings.sum() * 0


def instance_cross_entropy_gradient(
    embeddings: Tensor,
    labels: Tensor,
    scale: float,
    *gallery: Tensor,
    anchor: bool,
    others: bool = True,
) -> tuple[Tensor, Tensor]:
    """Sum Eq. 13-15 over anchors: the gradients with respect to embeddings and gallery.

    With `others`, positives and negatives move as in Eq. 15; with `anchor`, these weights also move
    the anchor.
    """
    f, g, g_labels, within = sides(embeddings, labels, *gallery)
    n = len(f)
    anchor_gradient, other_gradient = torch.zeros_like(f), torch.zeros_like(g)
    for a in range(n):
        positives, negatives = positives_and_negatives(a, labels, g_labels, within)
        if not positives or not negatives:
            continue
        negative_exp = {j: torch.exp(scale * (f[a] @ g[j])) for j in negatives}
        p = {}  # p̂(i|a)
        p_negative = {j: torch.zeros((), dtype=f.dtype) for j in negatives}  # Σ_i p̂(j|a,i), Eq. 12
        for i in positives:
            denominator = torch.exp(scale * (f[a] @ g[i])) + sum(negative_exp.values())
            p[i] = torch.exp(scale * (f[a] @ g[i])) / denominator
            for j in negatives:
                p_negative[j] = p_negative[j] + negative_exp[j] / denominator
        total = sum(1 - p[i] for i in positives)
        weights = {
            i: -(1 - p[i]) / total / (2 * n) for i in positives
        }  # Eq. 13, with Eq. 15's sign
        weights |= {j: p_negative[j] / total / (2 * n) for j in negatives}  # Eq. 14
        for k, weight in weights.items():
            if others:
                other_gradient[k] += weight * f[a]
            if anchor:
                anchor_gradient[a] += weight * g[k]
    if within:
        return through_the_norm(embeddings, anchor_gradient + other_gradient), torch.zeros(0)
    return through_the_norm(embeddings, anchor_gradient), through_the_norm(
        gallery[0], other_gradient
    )


def norm_softmax_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, temperature: float
) -> Tensor:
    """Compute Making Classification Competitive, Eq. 5; differentiable."""
    cosines = cosine_lists(embeddings, class_weights)
    return cross_entropy([[cosine / temperature for cosine in row] for row in cosines], labels)


def ranked_list_value(
    embeddings: Tensor,
    labels: Tensor,
    *gallery: Tensor,
    margin: float,
    alpha: float,
    negative_temperature: float,
    positive_temperature: float,
    balance: float,
    query_weights: str = "equal",
) -> Tensor:
    """Compute Eq. 8-14; differentiable as in section 3.2.4, where weights and the other features
    are constants.
    """
    f, g, g_labels, within = sides(embeddings, labels, *gallery)
    g = g.detach()

    def weighted(violations: list[Tensor], temperature: float) -> tuple[Tensor, Tensor]:
        violating = [v for v in violations if v > 0]
        if not violating:
            return f.sum() * 0, torch.zeros(())
        weights = [torch.exp(temperature * v.detach()) for v in violating]
        return sum(w * v for w, v in zip(weights, violating)) / sum(weights), sum(weights)

    losses, totals = [], []
    for q in range(len(f)):
        positives, negatives = positives_and_negatives(q, labels, g_labels, within)

        pull, total_P = weighted(
            [(f[q] - g[i]).norm() - (alpha - margin) for i in positives], positive_temperature
        )
        push, total_N = weighted(
            [alpha - (f[q] - g[j]).norm() for j in negatives], negative_temperature
        )
        losses.append((1 - balance) * pull + balance * push)
        totals.append(total_P + total_N)
    if query_weights == "equal":
        return torch.stack(losses).mean()
    return sum(w * loss for w, loss in zip(totals, losses)) / (sum(totals) or 1)


def margin_softmax_value(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    scale: float,
    angle: float,
    cosine: float,
) -> Tensor:
    """Compute CosFace, or ArcFace, Eq. 3, with the published continuation past π."""
    logits = []
    for cosines, y in zip(cosine_lists(embeddings, class_weights), labels.tolist()):
        phi = past_pi(cosines[y], angle) if angle else cosines[y]
        logits.append(
            [scale * (phi - cosine) if c == y else scale * s for c, s in enumerate(cosines)]
        )
    return cross_entropy(logits, labels)


def past_pi(cosine: Tensor, angle: float) -> Tensor:
    """Compute cos(θ + m), or the published continuation past π."""
    theta = torch.arccos(cosine)
    return torch.cos(theta + angle) if theta + angle < math.pi else cosine - angle * math.sin(angle)


def proxy_nca_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, scale: float, positive: bool
) -> Tensor:
    """Compute Proxy-NCA, Movshovitz-Attias et al., Eq. 5, on squared distances."""
    x, p = unit(embeddings), unit(class_weights)
    terms = []
    for b in range(len(x)):
        distances = [((x[b] - p[c]) ** 2).sum() for c in range(len(p))]
        others = torch.stack(
            [-scale * d for c, d in enumerate(distances) if positive or c != labels[b]]
        )
        terms.append(scale * distances[labels[b]] + torch.logsumexp(others, 0))
    return torch.stack(terms).mean()


def proxy_anchor_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, scale: float, margin: float
) -> Tensor:
    """Compute Proxy Anchor, Kim et al. 2020."""
    x, p = unit(embeddings), unit(class_weights)
    pulls, pushes = [], []
    for c in range(len(p)):
        positives = [x[b] @ p[c] for b in range(len(x)) if labels[b] == c]
        negatives = [x[b] @ p[c] for b in range(len(x)) if labels[b] != c]
        if positives:
            pulls.append(torch.log(1 + sum(torch.exp(-scale * (s - margin)) for s in positives)))
        if negatives:
            pushes.append(torch.log(1 + sum(torch.exp(scale * (s + margin)) for s in negatives)))
    push = torch.stack(pushes).sum() if pushes else 0
    return torch.stack(pulls).mean() + push / len(p)


def softmax_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, virtual: bool
) -> Tensor:
    """Compute MemVir's Eq. 2 or, if `virtual`, Virtual Softmax's Eq. 3."""
    logits = []
    for x, y in zip(embeddings, labels.tolist()):
        extra = [class_weights[y].norm() * (x @ x) / x.norm()] if virtual else []
        logits.append([x @ w for w in class_weights] + extra)
    return cross_entropy(logits, labels)


def curricular_face_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, t: float, scale: float, margin: float
) -> Tensor:
    """Compute CurricularFace, Eq. 5-9. Past π, the authors' code replaces the true class's logit,
    not the threshold.
    """
    logits = []
    for cosines, y in zip(cosine_lists(embeddings, class_weights), labels.tolist()):
        threshold = torch.cos(torch.arccos(cosines[y]) + margin)
        row = [s if s <= threshold else s * (t + s) for s in cosines]
        row[y] = past_pi(cosines[y], margin)
        logits.append([scale * logit for logit in row])
    return cross_entropy(logits, labels)


def soft_triple_value(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    centers: int,
    scale: float,
    gamma: float,
    margin: float,
    tau: float,
) -> Tensor:
    """Compute SoftTriple, Qian et al., Eq. 6-9."""
    w = unit(class_weights)
    num_classes = len(w) // centers
    logits = []
    for cosines, y in zip(cosine_lists(embeddings, class_weights), labels.tolist()):
        of_classes = torch.stack(cosines).reshape(num_classes, centers)
        similarities = [(torch.softmax(s / gamma, 0) * s).sum() for s in of_classes]
        logits.append([scale * (s - margin if c == y else s) for c, s in enumerate(similarities)])
    loss = cross_entropy(logits, labels)
    apart = [
        torch.sqrt(2 - 2 * (w[c * centers + k] @ w[c * centers + m]) + 1e-5)
        for c in range(num_classes)
        for m in range(centers)
        for k in range(m)
    ]
    return loss + tau * sum(apart) / (num_classes * centers * (centers - 1)) if apart else loss


def heated_up_batch_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, alpha: float
) -> Tensor:
    """Compute Heated-Up Softmax with batch normalisation, section 3.3."""
    w, d = unit(class_weights), embeddings.shape[1]
    columns = [
        (column - column.mean()) / torch.sqrt(((column - column.mean()) ** 2).mean() + 1e-5)
        for column in embeddings.T
    ]
    f = torch.stack(columns, dim=1) / d**0.5
    return cross_entropy([[alpha * (row @ weight) for weight in w] for row in f], labels)


# --- losses of smooth ranks


def _queries(
    embeddings: Tensor, labels: Tensor, *gallery: Tensor
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield the similarities to positives and to negatives, for all queries with a positive."""
    f, g, g_labels, within = sides(embeddings, labels, *gallery)
    for q in range(len(f)):
        positives, negatives = positives_and_negatives(q, labels, g_labels, within)
        if positives:
            yield [f[q] @ g[i] for i in positives], [f[q] @ g[j] for j in negatives]


def _mean(terms: list[Tensor], embeddings: Tensor) -> Tensor:
    zero = embeddings.sum() * 0  # back-propagates even if all terms are constants
    return torch.stack(terms).mean() + zero if terms else zero


def _one_minus_ap(
    positives: list[Tensor],
    negatives: list[Tensor],
    above: Callable[[Tensor], Tensor],
    below: Callable[[Tensor], Tensor],
) -> Tensor:
    precisions = []
    for i, own in enumerate(positives):
        rank_of_positives = 1 + sum(above(s - own) for j, s in enumerate(positives) if j != i)
        rank = rank_of_positives + sum(below(s - own) for s in negatives)
        precisions.append(rank_of_positives / rank * torch.ones(()))
    return 1 - torch.stack(precisions).mean()


def smooth_ap_value(
    embeddings: Tensor, labels: Tensor, *gallery: Tensor, temperature: float
) -> Tensor:
    """Compute Smooth-AP, Brown et al. 2020; the query is not used as a positive."""

    def step(d: Tensor) -> Tensor:
        return torch.sigmoid(d / temperature)

    queries = _queries(embeddings, labels, *gallery)
    return _mean([_one_minus_ap(p, n, step, step) for p, n in queries], embeddings)


def sup_ap_value(
    embeddings: Tensor,
    labels: Tensor,
    *gallery: Tensor,
    temperature: float,
    slope: float,
    saturation: float,
) -> Tensor:
    """Compute SupAP, Ramzi et al. 2021, with a continuous H⁻."""

    def bound(d: Tensor) -> Tensor:
        if d <= 0:
            return torch.sigmoid(d / temperature)
        if d <= saturation:
            return torch.sigmoid(d / temperature) + 0.5
        return slope * (d - saturation) + 1 / (1 + math.exp(-saturation / temperature)) + 0.5

    queries = _queries(embeddings, labels, *gallery)
    return _mean(
        [_one_minus_ap(p, n, lambda d: (d >= 0).to(d.dtype), bound) for p, n in queries], embeddings
    )


def recall_at_k_value(
    embeddings: Tensor,
    labels: Tensor,
    *gallery: Tensor,
    ks: list[int],
    k_temperatures: list[float],
    rank_temperature: float,
) -> Tensor:
    """Compute the Recall@k surrogate, Patel et al. 2022, with both minima of the authors' code."""
    terms = []
    for positives, negatives in _queries(embeddings, labels, *gallery):
        ranks = [
            1
            + sum(
                torch.sigmoid((s - own) / rank_temperature)
                for j, s in enumerate(positives)
                if j != i
            )
            + sum(torch.sigmoid((s - own) / rank_temperature) for s in negatives)
            for i, own in enumerate(positives)
        ]
        for k, temperature in zip(ks, k_temperatures, strict=True):
            found = sum(torch.sigmoid((k - rank) * torch.ones(()) / temperature) for rank in ranks)
            terms.append(1 - torch.clamp(found, max=k) / min(k, len(positives)))
    return _mean(terms, embeddings)


# --- losses of all pairs


def _distances(
    embeddings: Tensor, labels: Tensor, *gallery: Tensor
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Compute each query's distances to its positives and to its negatives, on the unit sphere."""
    f, g, g_labels, within = sides(embeddings, labels, *gallery)
    return [
        tuple(
            [torch.sqrt(2 - 2 * (f[q] @ g[k])) for k in side]
            for side in positives_and_negatives(q, labels, g_labels, within)
        )
        for q in range(len(f))
    ]


def triplet_value(
    embeddings: Tensor, labels: Tensor, *gallery: Tensor, triplets: str, margin: float | str
) -> Tensor:
    """Average over triplets: L_BH and L_BA≠0 of Hermans et al. 2017, and FaceNet's semi-hard
    negatives.
    """

    def loss(positive: Tensor, negative: Tensor) -> Tensor:
        excess = positive - negative
        return torch.log(1 + torch.exp(excess)) if margin == "soft" else torch.relu(excess + margin)

    terms = []
    for positives, negatives in _distances(embeddings, labels, *gallery):
        if triplets == "batch-hard" and positives and negatives:
            terms.append(loss(max(positives), min(negatives)))
        for positive in positives:
            if triplets == "batch-all":
                terms += [term for negative in negatives if (term := loss(positive, negative)) > 0]
            farther = [negative for negative in negatives if negative > positive]
            if triplets == "semi-hard" and farther:
                terms.append(loss(positive, min(farther)))
    return _mean(terms, embeddings)


def contrastive_value(
    embeddings: Tensor, labels: Tensor, *gallery: Tensor, margin: float
) -> Tensor:
    """Compute Hadsell et al. 2006 per query, as means over positives, and over negatives within the
    margin.
    """
    total = embeddings.sum() * 0
    for positives, negatives in _distances(embeddings, labels, *gallery):
        total = total + _mean([d**2 / 2 for d in positives], embeddings)
        total = total + _mean([(margin - d) ** 2 / 2 for d in negatives if d < margin], embeddings)
    return total / len(embeddings)


def multi_similarity_value(
    embeddings: Tensor,
    labels: Tensor,
    *gallery: Tensor,
    alpha: float,
    beta: float,
    threshold: float,
    epsilon: float,
) -> Tensor:
    """Compute Multi-Similarity, Wang et al. 2019, including the selection of pairs."""
    total = embeddings.sum() * 0
    for positives, negatives in _queries(embeddings, labels, *gallery):
        if positives and negatives:
            hard = [s for s in positives if s - epsilon < max(negatives)]
            near = [s for s in negatives if s + epsilon > min(positives)]
            one = embeddings.new_ones(())
            total = (
                total
                + torch.log(one + sum(torch.exp(-alpha * (s - threshold)) for s in hard)) / alpha
            )
            total = (
                total + torch.log(one + sum(torch.exp(beta * (s - threshold)) for s in near)) / beta
            )
    return total / len(embeddings)


def info_nce_value(
    embeddings: Tensor, labels: Tensor, *gallery: Tensor, log_scale: Tensor, symmetric: bool
) -> Tensor:
    """Compute InfoNCE as in CLIP, Radford et al. 2021, but a row can have several partners, or
    none.
    """
    sided = [(embeddings, labels, *gallery)]
    if gallery and symmetric:
        sided.append((*gallery, embeddings, labels))
    values = [sup_con_value(*given, temperature=torch.exp(-log_scale)) for given in sided]
    return sum(values) / len(values) + (gallery[0].sum() + log_scale if gallery else log_scale) * 0


def sup_con_value(
    embeddings: Tensor, labels: Tensor, *gallery: Tensor, temperature: float
) -> Tensor:
    """Compute L_out of Khosla et al. 2020, averaged over the anchors that have a positive."""
    f, g, g_labels, within = sides(embeddings, labels, *gallery)
    anchors = []
    for a in range(len(f)):
        positives, negatives = positives_and_negatives(a, labels, g_labels, within)
        others = torch.stack(
            [f[a] @ g[j] / temperature for j in positives + negatives] or [f.sum() * 0]
        )
        if positives:
            terms = [torch.logsumexp(others, 0) - f[a] @ g[i] / temperature for i in positives]
            anchors.append(torch.stack(terms).mean())
    return torch.stack(anchors).mean() if anchors else embeddings.sum() * 0


def siglip_value(
    embeddings: Tensor, labels: Tensor, *gallery: Tensor, log_scale: Tensor, bias: Tensor
) -> Tensor:
    """Compute SigLIP, Zhai et al. 2023, with labels: z is 1 when a pair of rows is in the same
    class, else −1.
    """
    f, g, g_labels, within = sides(embeddings, labels, *gallery)
    total = (embeddings.sum() + log_scale + bias) * 0
    for i in range(len(f)):
        for j in range(len(g)):
            if within and i == j:
                continue
            z = 1 if labels[i] == g_labels[j] else -1
            total = total - torch.log(
                torch.sigmoid(z * (torch.exp(log_scale) * (f[i] @ g[j]) + bias))
            )
    return total / len(f)


def koleo_value(embeddings: Tensor, labels: Tensor, *gallery: Tensor) -> Tensor:
    """Compute Sablayrolles et al. 2019 on unit rows: average −log of the distance to the nearest
    other row.
    """
    f, g, _, within = sides(embeddings, labels, *gallery)
    total = embeddings.sum() * 0
    for i in range(len(f)):
        distances = [
            (f[i] - g[j]).square().sum().sqrt() for j in range(len(g)) if not (within and i == j)
        ]
        if distances:
            total = total - torch.log(torch.stack(distances).min() + 1e-8)
    return total / len(f)


# --- losses for faces


def sub_center_arc_face_value(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    centers: int,
    scale: float,
    margin: float,
) -> Tensor:
    """Compute Deng et al. 2020: ArcFace, given the smallest angle to a class's centres."""
    logits = []
    for all_cosines, y in zip(cosine_lists(embeddings, class_weights), labels.tolist()):
        cosines = [s.max() for s in torch.stack(all_cosines).reshape(-1, centers)]
        true = past_pi(cosines[y], margin)
        logits.append([scale * (true if c == y else s) for c, s in enumerate(cosines)])
    return cross_entropy(logits, labels)


def ada_face_value(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    mean: float,
    std: float,
    scale: float,
    margin: float,
    concentration: float,
) -> Tensor:
    """Compute AdaFace, Kim et al. 2022, with the limits in the authors' code, except for the limits
    of angles.
    """
    logits = []
    for x, cosines, y in zip(embeddings, cosine_lists(embeddings, class_weights), labels.tolist()):
        length = min(max(float(x.detach().norm()), 0.001), 100.0)
        quality = min(max((length - mean) / (std + 0.001) * concentration, -1.0), 1.0)
        angle = torch.clamp(torch.arccos(cosines[y]) - margin * quality, 0.0, math.pi)
        true = torch.cos(angle) - margin * (1 + quality)
        logits.append([scale * (true if c == y else s) for c, s in enumerate(cosines)])
    return cross_entropy(logits, labels)
