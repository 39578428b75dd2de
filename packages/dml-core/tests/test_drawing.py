"""When rows of a random matrix are drawn in blocks, rows and generator state should not differ from
a full draw.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dml_core import draw_rows


def uniform(generator: torch.Generator, block: torch.Tensor) -> torch.Tensor:
    return block.uniform_(-0.3, 0.7, generator=generator)


def normal(generator: torch.Generator, block: torch.Tensor) -> torch.Tensor:
    return block.normal_(0.1, 2.0, generator=generator)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 20),
    bounds=st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted),
    groups=st.integers(1, 6),
    fill=st.sampled_from([uniform, normal]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 99),
)
# A matrix of 15 numbers is smaller than a group, which has 16.
@example(rows=5, columns=3, bounds=[1, 2], groups=1, fill=normal, dtype=torch.float32, seed=0)
# A matrix of 33 numbers is drawn in blocks of 16 and 17 numbers.
@example(rows=3, columns=11, bounds=[1, 2], groups=1, fill=normal, dtype=torch.float32, seed=0)
def test_kept_rows_have_the_bits_of_one_draw(rows, columns, bounds, groups, fill, dtype, seed):
    first, last = (min(bound, rows) for bound in bounds)
    generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        whole = fill(generators[0], torch.empty(rows, columns))
        kept = draw_rows(
            (rows, columns), slice(first, last), partial(fill, generators[1]), block=16 * groups
        )
    finally:
        torch.set_default_dtype(before)
    assert kept.dtype == dtype
    assert kept.shape == (last - first, columns)
    assert torch.equal(kept, whole[first:last])
    # Further draws show whether the generators, which also cache numbers, are in equal states.
    for count in (1, 40):
        assert torch.equal(*(normal(generator, torch.empty(count)) for generator in generators))


def test_blocks_of_the_default_size_have_the_bits_of_one_draw():
    shape, keep = (5000, 512), slice(3000, 3100)  # 2.5 blocks
    for fill in (uniform, normal):
        whole = fill(torch.Generator().manual_seed(1), torch.empty(shape))
        kept = draw_rows(shape, keep, partial(fill, torch.Generator().manual_seed(1)))
        assert torch.equal(kept, whole[keep])


@pytest.mark.parametrize(
    ("keep", "block"), [(slice(0, 2), 24), (slice(0, 2), 0), (slice(0, 4, 2), 16)]
)
def test_blocks_with_broken_groups_and_scattered_rows_raise(keep, block):
    with pytest.raises(ValueError, match="expected a multiple of 16, and consecutive rows"):
        draw_rows((4, 4), keep, torch.Tensor.normal_, block=block)
