"""A random subset of the classes, so that a step's cost is proportional to its size.

Shapes: `B` batch, `C` classes, `K` classes of the subset.
"""

from __future__ import annotations

import torch


def class_subset(
    labels: torch.Tensor, num_classes: int, class_fraction: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the batch's classes and a uniform sample of the others, without replacement.

    |subset| = max(⌈fraction · C⌉, distinct classes of the batch)

    Source: Making Classification Competitive for Deep Metric Learning, section 4.3. Time and memory are
    proportional to the subset, not to C, for fractions below a quarter.

    Args:
        labels: (B,) int64 in [0, C).
        num_classes: C.
        class_fraction: in (0, 1].
        generator: the generator of the choice, on the CPU, so that every rank and device draws the same.

    Returns:
        The subset, (K,) ascending, and the labels as indices into it, (B,), both on the labels' device.
    """
    own = torch.unique(labels)
    wanted = max(-int(-class_fraction * num_classes // 1), len(own)) - len(own)
    drawn = _draw_distinct(num_classes - len(own), wanted, generator).to(labels.device)
    # The r-th class outside the batch is r plus the number of the batch's classes before it.
    skipped = torch.searchsorted(own - torch.arange(len(own), device=own.device), drawn, right=True)
    subset = torch.cat((own, drawn + skipped)).sort().values
    return subset, torch.searchsorted(subset, labels)


def _draw_distinct(population: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw `count` distinct numbers of range(population), every set equally likely, in no particular order.

    They are on the generator's device, whatever torch's default device is.
    """
    device = generator.device
    if 4 * count >= population:
        return torch.randperm(population, generator=generator, device=device)[:count]
    found = torch.empty(0, dtype=torch.int64, device=device)
    while len(found) < count:
        wanted = (count - len(found) + count // 4 + 16,)
        more = torch.randint(population, wanted, generator=generator, device=device)
        found = torch.unique(torch.cat((found, more)))
    # Drop surplus draws at random: dropping the largest would be a bias.
    return found[torch.randperm(len(found), generator=generator, device=device)[:count]]
