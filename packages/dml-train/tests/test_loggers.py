"""Loggers: metrics.jsonl must not depend on interruptions; TensorBoard must show all curves."""

from __future__ import annotations

import errno
import json
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from dml_core import DmlError
from dml_train.training.loggers import JsonLines, TensorBoard


def test_each_line_is_flushed_with_exact_values_null_for_non_finite_ones_and_no_times(tmp_path):
    logger = JsonLines(tmp_path)
    logger.log(1, {"loss": 0.1 + 0.2, "time/images_per_second": 123.0})
    logger.log(2, {"loss": 0.5, "gradient_norm": float("nan"), "loss.scale": float("inf")})
    expected = '{"step": 1, "loss": 0.30000000000000004}\n'
    expected += '{"step": 2, "loss": 0.5, "gradient_norm": null, "loss.scale": null}\n'
    assert (tmp_path / "metrics.jsonl").read_text() == expected
    logger.close()


@pytest.mark.parametrize("tail", [b"", b'{"step": 4, "lo', b'{"step": 3, "loss": 9.0'])
def test_lines_after_the_checkpoint_and_truncated_lines_are_dropped(tmp_path, tail):
    first = JsonLines(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"loss": float(step)})
    first.close()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + tail)
    second = JsonLines(tmp_path, start_step=2)
    second.log(3, {"loss": 3.0})
    second.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize("damage", [b"\0\0\0\n", b"3\n", b"{}\n"])
def test_a_corrupt_line_among_intact_ones_is_named(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'{"step": 3}\n')
    with pytest.raises(DmlError, match=r"line 2 of .*metrics.jsonl is corrupt; move the file away"):
        JsonLines(tmp_path, start_step=3)
    assert damage in path.read_bytes()


def test_a_file_that_cannot_be_opened_is_reported(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(DmlError, match=r"can't write .*metrics.jsonl: Is a directory"):
        JsonLines(tmp_path)


def test_tensorboard_has_every_curve_and_hides_repeated_steps(tmp_path, monkeypatch):
    first = TensorBoard(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"loss": float(step), "time/images_per_second": 10.0})
    first.close()
    # TensorBoard reads files in the order of their names, which start with the second of opening.
    later = time.time() + 1
    monkeypatch.setattr(time, "time", lambda: later)
    second = TensorBoard(tmp_path, start_step=2)
    second.log(3, {"loss": 30.0})
    second.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "time/images_per_second"}
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_a_full_disk_is_reported_with_the_file_and_closing_is_silent(tmp_path, small_files):
    logger = JsonLines(tmp_path)
    logger.log(1, {"loss": 1.0})
    words = r"can't write .*metrics.jsonl: File too large; .*resume the run"
    with small_files(30):
        with pytest.raises(DmlError, match=words):
            logger.log(2, {"loss": 2.0})
        logger.close()


def test_tensorboard_reports_a_full_disk_and_closing_is_silent(tmp_path, monkeypatch):
    logger = TensorBoard(tmp_path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SummaryWriter, "add_scalar", full)
        patch.setattr(SummaryWriter, "close", full)
        with pytest.raises(DmlError, match=r"can't write .*tensorboard: No space left"):
            TensorBoard.close(logger)
        with pytest.raises(
            DmlError, match=r"can't write .*tensorboard: No space left.*resume the run"
        ):
            logger.log(1, {"loss": 1.0})
        logger.close()


def test_values_logged_twice_are_one_line_with_and_without_an_interruption(tmp_path):
    for name, stops in (("whole", False), ("cut", True)):
        (tmp_path / name).mkdir()
        logger = JsonLines(tmp_path / name)
        logger.log(1, {"validation/recall@1": 0.5})
        if stops:
            logger.close()
            logger = JsonLines(tmp_path / name, start_step=1)
        logger.log(1, {"validation/recall@1": 0.5})
        logger.close()
    one, other = (tmp_path / name / "metrics.jsonl" for name in ("whole", "cut"))
    assert one.read_bytes() == other.read_bytes()
