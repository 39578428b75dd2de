"""A third party's loss: built, installed beside the project's wheels, and chosen by name in a recipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from train_support.photo_world import write_photos

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheels")]

RECIPE = """
[training]
steps = 4
device = "cpu"

[dataset]
name = "image-folder"
root = "{images}"
crop = 32
resize = 36

[backbone]
name = "small-conv"

[embedding]
dim = 16

[sampler]
name = "class-balanced"
classes_per_batch = 4
images_per_class = 2

[loss]
name = "norm-softmax"

[optimizer]
name = "adamw"
lr = 0.001
"""


def test_a_third_partys_loss_trains_by_name(wheels, complete, tmp_path):
    subprocess.run(
        [UV, "build", "--quiet", "--wheel", "--out-dir", wheels, ROOT / "examples/third-party-loss"],
        check=True,
    )
    complete.install("dml-example-loss", find_links=wheels)
    assert "supervised-contrastive" in complete.command("dml", "plugins")

    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        RECIPE.format(images=write_photos(tmp_path / "images", classes=8, each=4)), encoding="utf-8"
    )
    out = tmp_path / "run"
    complete.command(
        "dml", "train", recipe, "--out", out,
        "--set", "loss.name=supervised-contrastive", "--set", "loss.temperature=0.2",
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 4
    assert all(np.isfinite(losses))
    assert "supervised-contrastive" in (out / "recipe.toml").read_text(encoding="utf-8")
    assert 0 <= json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["map@r"] <= 1
