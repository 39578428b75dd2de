"""Signals at random moments of runs with ranks and loaders. ``DML_KILLS=200`` sets the number of moments."""

from __future__ import annotations

import os

import pytest
from train_support.random_kills import CLOCK, Kills


@pytest.mark.skipif(not CLOCK.exists(), reason="needs Linux's record of processor time")
def test_a_run_disturbed_at_random_moments_ends_with_the_bytes_of_an_undisturbed_one(tmp_path):
    kills = Kills(tmp_path, seed=int(os.environ.get("DML_KILLS_SEED", "0")))
    kills.disturb_runs(int(os.environ.get("DML_KILLS", "4")))
    for moment, times in sorted(kills.moments.items()):
        print(*moment, times, sep=" | ")
