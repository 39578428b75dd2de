"""Embeddings as a Parquet file: a row an image, with its name.

Shapes: `B` rows of a part, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dml_train.extras import extra

Part = tuple[Sequence[str], npt.NDArray[Any]]  # (B,) names, and (B, D) float32 or packed codes


def write_parquet(
    file: BinaryIO, parts: Iterable[Part], width: int, labels: npt.NDArray[np.int64] | None
) -> None:
    """Write ``path``, ``embedding`` (D float32) or ``code`` (bytes), and, if given, ``label``; a row group each part.

    Args:
        file: receives the table.
        parts: the rows.
        width: entries of a row.
        labels: of all rows, in their order.

    Raises:
        MissingExtra: if pyarrow isn't installed.
    """
    with extra("tables", "a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    writer, done = None, 0
    try:
        for names, rows in parts:
            flat = np.ascontiguousarray(rows).reshape(-1)
            if rows.dtype == np.uint8:
                kind = {
                    "code": pa.FixedSizeBinaryArray.from_buffers(
                        pa.binary(width), len(rows), [None, pa.py_buffer(flat)]
                    )
                }
            else:
                kind = {"embedding": pa.FixedSizeListArray.from_arrays(pa.array(flat), width)}
            columns = {"path": pa.array(names, pa.string()), **kind}
            if labels is not None:
                columns["label"] = pa.array(labels[done : done + len(rows)])
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
            done += len(rows)
    finally:
        if writer is not None:
            writer.close()
