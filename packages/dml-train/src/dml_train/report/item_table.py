"""Write the items of an exploration as a Parquet table, for notebooks and other viewers."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from dml_train.extras import extra
from dml_train.files import write_atomically
from dml_train.report.exploration import Exploration


def write_item_table(found: Exploration, out: Path) -> Path:
    """Write a row per item, and return the path.

    The columns are ``x``, ``y`` (the map), ``label``, ``file``, ``right`` (whether the nearest
    neighbour matches; null without a match), ``first_match`` (the rank), ``suspicion`` (0 to 1),
    ``suggested`` (a label), ``neighbors`` (``{"ids", "distances"}``, where ids are row numbers; a
    distance is 1 − similarity, unless the run compares codes), and ``image`` (``{"bytes"}``, PNG).

    Raise a `DmlError` if pyarrow isn't installed, or if the file can't be written.
    """
    with extra("tables", "a table of items"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    distances = found.scores.astype(np.float64)
    distances = distances if found.is_distance else 1 - distances
    neighbours = [
        {"ids": ids[ids >= 0].tolist(), "distances": own[ids >= 0].tolist()}
        for ids, own in zip(found.nearest, distances, strict=True)
    ]
    columns = {
        "x": found.points[:, 0],
        "y": found.points[:, 1],
        "label": list(map(str, found.classes)),
        "file": list(found.files),
        "right": pa.array(found.right[:, 0], mask=~found.matched),
        "first_match": pa.array(found.rank, mask=~found.matched),
        "suspicion": found.suspects.score,
        "suggested": list(map(str, found.suspects.suggested)),
        "neighbors": pa.array(neighbours),
    }
    if found.picture is not None:
        columns["image"] = [{"bytes": _png(found, item)} for item in range(len(found))]
    table = pa.table(columns)
    write_atomically(out, lambda file: pq.write_table(table, file))
    return out


def _png(found: Exploration, item: int) -> bytes:
    assert found.picture is not None
    file = BytesIO()
    Image.fromarray(found.picture(item)).save(file, "png")
    return file.getvalue()
