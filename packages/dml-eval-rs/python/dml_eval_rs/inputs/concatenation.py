"""Concatenation of blocks of several arrays, such as the batches of a data loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dml_eval_rs.inputs.blocks import GrownArray, holds_arrays
from dml_eval_rs.inputs.conversion import to_array, to_label_block


def concatenate_blocks(blocks: Iterable[Any]) -> Any:
    """Concatenate blocks of embeddings, or blocks of several arrays, such as ``(embeddings, labels)``.

    For ``evaluate(*concatenate_blocks((model(x), y) for x, y in loader))``. Each block is copied as it comes, so memory
    holds the result and one block. A block may be anything that `evaluate` takes, such as a tensor on an accelerator.

    Args:
        blocks: (n_i, D) arrays, or tuples of such an array and others with n_i entries; n_i may differ.

    Returns:
        The (n, D) array, or a tuple of arrays.

    Raises:
        TypeError: if the blocks differ in the kind of their entries.
        ValueError: if there are no blocks, or they differ in width or in the number of arrays.
    """
    columns: list[GrownArray] = []
    for place, block in enumerate(blocks):
        arrays = tuple(block) if holds_arrays(block) else (block,)
        if place == 0:
            several = holds_arrays(block)
            columns = [GrownArray("the embeddings", to_array, 2)]
            columns += [GrownArray(f"array {i}", to_label_block) for i in range(1, len(arrays))]
        if len(arrays) != len(columns) or holds_arrays(block) != several:
            raise ValueError(f"block {place} holds {len(arrays)} arrays; expected {len(columns)}, as block 0")
        for column, array in zip(columns, arrays, strict=True):
            column.append(array)
        if len({column.length for column in columns}) > 1:
            sizes = ", ".join(str(column.last) for column in columns)
            raise ValueError(f"block {place} holds arrays of {sizes} entries; expected as many of each")
    if not columns:
        raise ValueError("blocks is empty; expected at least one block")
    found = tuple(column.finish() for column in columns)
    return found if several else found[0]
