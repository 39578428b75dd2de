"""Wheels can be installed into empty environments to run the README's example; plugins can be
added.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from train_support.photo_world import write_photos

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def readme_example(package: str) -> str:
    """Return the first block of Python in a package's README."""
    text = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    return re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)[1]


def toolkit(environment) -> set[str]:
    return {name for name in environment.packages() if name.startswith("dml-")}


def test_the_evaluator_installs_with_numpy_and_nothing_else(wheels, environment):
    environment.install("dml-eval-rs", find_links=wheels)
    assert environment.packages() == {"dml-eval-rs", "numpy"}
    assert "MAP@R" in environment.python_script(readme_example("dml-eval-rs"))


def test_a_package_brings_torch_and_the_evaluator_and_none_of_the_others(wheels, environment):
    for package in ("dml-core", "dml-losses"):
        environment.install(package, find_links=wheels)
        assert toolkit(environment) == {"dml-core", "dml-eval-rs", package}
        assert environment.python_script(readme_example(package)).strip()
        environment.uninstall("dml-core")  # dml-losses must install dml-core again


def test_the_trainer_alone_refuses_losses_of_missing_packages(wheels, environment):
    environment.install("dml-train", find_links=wheels)
    assert toolkit(environment) == {"dml-core", "dml-eval-rs", "dml-train"}
    assert "glyphs" in environment.command("dml", "plugins")
    message = environment.command("dml", "train", "glyphs-tiny", "--out", "run", code=2)
    assert "unknown loss 'norm-softmax'" in message
    assert "Traceback" not in message


def test_the_trainer_with_all_brings_everything_and_trains(complete):
    listing = complete.command("dml", "plugins")
    for name in (
        "norm-softmax",
        "instance-cross-entropy",
        "exact",
        "hamming",
        "glyphs",
        "class-balanced",
    ):
        assert name in listing
    complete.python_script(readme_example("dml-train"))


def test_the_evaluators_wheel_runs_on_any_python_from_3_11_and_any_x86_64(wheels):
    (wheel,) = wheels.glob("dml_eval_rs-*.whl")
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.endswith("_native.pyi") for name in names)
    assert any(name.endswith("py.typed") for name in names)
    assert not [name for name in names if name.endswith(".rs")], "Rust sources in the wheel"
    assert not [name for name in names if name.endswith(".pyc")], "bytecode in the wheel"


def test_a_third_partys_loss_trains_by_name(wheels, complete, tmp_path):
    command = [
        Path(sys.executable).with_name("uv"),
        "build",
        "--quiet",
        "--wheel",
        "--out-dir",
        wheels,
    ]
    subprocess.run([*command, ROOT / "examples/third-party-loss"], check=True)
    complete.install("dml-example-loss", find_links=wheels)
    assert "supervised-contrastive" in complete.command("dml", "plugins")
    out, images = tmp_path / "run", write_photos(tmp_path / "images", classes=8, each=4)
    complete.command(
        "dml", "train", "my-images", "--out", out, "--set", "training.steps=4", "--set",
        f"dataset.root={images}",
        "--set", "sampler.batch_size=8", "--set",
        'loss={name="supervised-contrastive", temperature=0.2}',
    )  # fmt: skip
    lines = [
        json.loads(line)
        for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 4
    assert all(np.isfinite(losses))
    assert "supervised-contrastive" in (out / "recipe.toml").read_text(encoding="utf-8")
    assert 0 <= json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["map@r"] <= 1
