"""Every wheel installs alone into an empty environment, and runs the example of its README."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheels")]

ROOT = Path(__file__).parents[2]


def readme_example(package: str) -> str:
    """Return the first block of Python in a package's README."""
    text = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    return re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)[1]


def test_the_evaluator_installs_with_numpy_and_nothing_else(wheels, environment):
    alone = environment()
    alone.install("dml-eval-rs", find_links=wheels)
    assert alone.packages() == {"dml-eval-rs", "numpy"}
    assert "MAP@R" in alone.python_script(readme_example("dml-eval-rs"))


@pytest.mark.parametrize("package", ["dml-core", "dml-losses"])
def test_a_package_brings_torch_and_none_of_the_others(package, wheels, environment):
    alone = environment()
    alone.install(package, find_links=wheels)
    assert {name for name in alone.packages() if name.startswith("dml-")} == {"dml-core", package}
    assert alone.python_script(readme_example(package)).strip()


def test_the_trainer_alone_refuses_losses_of_missing_packages(wheels, environment):
    alone = environment()
    alone.install("dml-train", find_links=wheels)
    assert {name for name in alone.packages() if name.startswith("dml-")} == {"dml-core", "dml-train"}
    assert "glyphs" in alone.command("dml", "plugins")
    message = alone.expect_refusal("dml", "train", "glyphs-tiny", "--out", "run")
    assert "unknown loss 'norm-softmax'" in message


def test_the_trainer_with_all_brings_everything_and_trains(wheels, environment):
    trainer = environment()
    trainer.install("dml-train[all]", find_links=wheels)
    listing = trainer.command("dml", "plugins")
    for name in ("norm-softmax", "instance-cross-entropy", "exact", "hamming", "glyphs", "class-balanced"):
        assert name in listing
    trainer.python_script(readme_example("dml-train"))


def test_the_evaluators_wheel_runs_on_any_python_from_3_11_and_any_x86_64(wheels):
    (wheel,) = wheels.glob("dml_eval_rs-*.whl")
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.endswith("_native.pyi") for name in names)
    assert any(name.endswith("py.typed") for name in names)
    assert not [name for name in names if name.endswith(".rs")], "Rust sources in the wheel"
