"""With more images and classes, the work must only grow in proportion; paths should use little
memory.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from dml_core import ClassBalancedSampler
from dml_train.data.factories import csv
from dml_train.data.file_dataset import PathTable
from dml_train.data.held_out_classes import hold_out
from dml_train.report.retrieval import NearestNeighbours


def count_operations(call):
    """Count the calls of Python and of compiled functions in this thread."""
    count = 0

    def record(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def test_the_start_takes_work_in_proportion_to_the_rows_of_a_table(tmp_path):
    """A table with 2 images per class is read, checked, split, sampled, and sent to a loader
    process.
    """
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")

    def start(rows: int) -> None:
        train, held_out = hold_out(csv(str(tmp_path), f"{rows}.csv").train, 0.5, 0)
        assert held_out is not None
        sampler = ClassBalancedSampler(train.labels, 16, 2)
        sampler.batch_at(0, 0)
        pickle.loads(pickle.dumps((train, sampler)))

    for rows in (400, 800):
        for row in range(rows):
            os.link(tmp_path / "image.png", tmp_path / f"{rows}-{row}.png")
        lines = [f"{rows}-{row}.png,class {row // 2}" for row in range(rows)]
        (tmp_path / f"{rows}.csv").write_text("path,label\n" + "\n".join(lines))
    start(400)  # imports, and registers
    assert count_operations(lambda: start(800)) < 2.2 * count_operations(lambda: start(400))


def test_the_worst_classes_are_found_without_a_look_at_all_items_for_each_class():
    def find(classes: int) -> int:
        labels = np.repeat(np.arange(classes), 2)
        nearest_Q1 = (
            np.arange(2 * classes)[:, None] ^ 2
        )  # a neighbour in the adjacent class is wrong
        right_Q1 = np.zeros((2 * classes, 1), np.bool_)
        scores_Q1, matched_Q = np.ones((2 * classes, 1)), np.ones(2 * classes, np.bool_)
        found = NearestNeighbours(
            nearest_Q1, scores_Q1, right_Q1, matched_Q, labels, gallery_labels_G=labels
        )
        return count_operations(found.worst_classes)

    find(100)
    assert find(10_000) == find(100)


def test_a_table_of_paths_is_as_small_as_their_characters():
    paths = [Path(f"photographs/{number:09d}.jpg") for number in range(1_000)]
    assert len(pickle.dumps(PathTable(paths))) < 1_000 * (len(str(paths[0])) + 8) + 1_000
