"""Faults around a run: full disks, signals to loaders, and ranks that die, hang or get unequal
parts of batches.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from train_support.rough_sources import Fatal, Signalled
from train_support.run_traces import check_same_bits
from train_support.sharded_ranks import in_ranks, lose_the_other

from dml_core import DmlError, hookimpl
from dml_train.data.batches import StepBatches, load_ahead
from dml_train.ranks.ranks import Ranks
from dml_train.recipe.checking import parse
from dml_train.training import checkpoint
from dml_train.training.build import build


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True])
def test_a_dead_or_silent_rank_is_reported_within_the_timeout(silent):
    in_ranks(2, lose_the_other, silent, codes=[0, -signal.SIGKILL])


@pytest.mark.parametrize("large", [checkpoint.WEIGHTS, checkpoint.STATE])
def test_a_refused_write_keeps_the_previous_checkpoint_and_names_a_full_disk(
    tmp_path, small_files, monkeypatch, large
):
    few, many = {"x": torch.zeros(1)}, {"x": torch.zeros(100_000)}
    parts = (many, few) if large == checkpoint.WEIGHTS else (few, many)
    checkpoint.write(tmp_path, 1, few, few)
    words = r"can.t save the checkpoint of step 2 .*the checkpoint of step 1 .* is intact.*resume"
    with small_files(50_000), pytest.raises(DmlError, match=words):
        checkpoint.write(tmp_path, 2, *parts)

    def usage(folder):  # space is available again when the partial checkpoint is removed
        return SimpleNamespace(free=0 if (tmp_path / ".step-00000002.partial").exists() else 10**9)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    words = r"the disk is full \(0 MiB free\).* Free some space"
    with small_files(50_000), pytest.raises(DmlError, match=words):
        checkpoint.write(tmp_path, 2, *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_run_stopped_by_a_full_disk_resumes_to_the_same_bits(
    run, registry, tmp_path, small_files
):
    whole = run(tmp_path / "whole")

    class Full:
        @hookimpl
        def dml_checkpoint_saved(self, step):
            if step == 4:
                meanwhile.enter_context(small_files(4096))  # enough for the metrics

    full = Full()
    registry.plugins.register(full, distribution="full")
    words = r"checkpoint of step 8 .*the checkpoint of step 4 .* is intact"
    with ExitStack() as meanwhile, pytest.raises(DmlError, match=words):
        run(tmp_path / "cut")
    registry.plugins.manager.unregister(full)
    check_same_bits(whole, run(tmp_path / "cut", resume=True))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_loader_processes_survive_the_signals_that_stop_a_run(number):
    assert list(load_ahead(Signalled(number), range(3), 1, pin=False)) == [0, 1, 2]
    assert not {signal.SIGTERM, signal.SIGINT} & signal.pthread_sigmask(signal.SIG_BLOCK, ())


OTHERS = """
import multiprocessing, signal, time
from train_support.rough_sources import SignalledEarly
from dml_train.data.batches import load_ahead

for number in (signal.SIGTERM, signal.SIGINT):
    assert list(load_ahead(SignalledEarly(number), range(3), 1, pin=False)) == [0, 1, 2]
context = multiprocessing.get_context("forkserver")
process = context.Process(target=time.sleep, args=(600,), daemon=True)
process.start()
process.terminate()
process.join(300)
assert process.exitcode == -signal.SIGTERM, process.exitcode
"""


@pytest.mark.slow
def test_loaders_block_signals_from_their_start_and_other_processes_of_their_server_do_not():
    # Use a new program, since an earlier test may have started the server of this process.
    subprocess.run([sys.executable, "-c", OTHERS], check=True, cwd=Path(__file__).parent)


UNFINISHED = """
from dml_train.data.batches import load_ahead

loaded = load_ahead(range(99), range(99), 1, pin=False)
assert next(loaded) == 0
"""


@pytest.mark.slow
def test_a_program_that_stops_loading_early_ends():
    subprocess.run(
        [sys.executable, "-c", UNFINISHED], check=True, timeout=300
    )  # a failure would hang


UNSTARTABLE = """
from dml_core import DmlError
from dml_train.data.batches import load_ahead

try:
    next(load_ahead(range(3), range(3), 1, pin=False))
except DmlError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="since 3.14, Python chooses another folder itself"
)
def test_loader_processes_that_cannot_start_are_one_message_with_a_remedy(tmp_path):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    environment = {**os.environ, "TMPDIR": str(long)}
    done = subprocess.run(
        [sys.executable, "-c", UNSTARTABLE],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    message = (
        r"can't start loader processes: AF_UNIX path too "
        rf"long.*\({re.escape(str(long))}\).*workers = 0"
    )
    assert re.match(message, done.stdout)
    assert done.stderr == ""


def test_no_loader_process_outlives_its_iterator():
    loaded = load_ahead(range(100), range(100), 2, pin=False)
    assert next(loaded) == 0
    assert multiprocessing.active_children()
    loaded.close()
    assert not multiprocessing.active_children()
    with pytest.raises(DmlError, match="a loader process died"):
        list(load_ahead(Fatal(), range(9), 2, pin=False))
    assert not multiprocessing.active_children()


def test_a_batch_that_ranks_cannot_share_equally_is_refused_before_anything_starts(
    registry, tiny_document
):
    recipe = parse(tiny_document(), registry)
    message = "a batch contains 8 images, which 3 ranks can't share equally; choose a batch"
    with pytest.raises(DmlError, match=message):
        build(recipe, registry, Ranks(0, 3))


class Uneven:
    """A sampler of batches with 8, 6, 4 and 2 items."""

    def __len__(self):
        return 4

    def batch_at(self, epoch, position):
        return np.arange(8 - 2 * position)


def test_a_later_batch_that_ranks_cannot_share_equally_is_named(registry, tiny_document):
    split = build(parse(tiny_document(), registry), registry).train
    batches = StepBatches(split, Uneven(), seed=0, rank=1, world_size=4)
    loaded = load_ahead(batches, range(4), 0, pin=False)
    assert len(next(loaded).images) == 2
    with pytest.raises(
        DmlError, match="the batch of step 1 has 6 images, which 4 ranks can't share equally"
    ):
        next(loaded)
