"""Help, listings, completion and error messages must be fast, so they must not import torch or
numpy.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMPUTES = {"numpy", "torch", "torchvision", "timm", "pytorch_metric_learning"}
COMPUTES |= {"sklearn", "matplotlib", "optuna"}
PROGRAM = f"""
import sys
sys.argv = ["dml", *sys.argv[1:]]
from dml_train.cli import main
try:
    main(prog_name="dml")
finally:
    print("IMPORTED", *sorted({COMPUTES} & sys.modules.keys()), file=sys.stderr)
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.stderr.splitlines()[-1].strip() == "IMPORTED", done.stderr
    return done


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["--help"], 0, "Train RECIPE: a TOML file"),
        (["--version"], 0, "dml, version"),
        (["train", "--help"], 0, "--resume"),
        (["recipes"], 0, "glyphs-tiny"),
        (["plugins"], 0, "norm-softmax"),
        (["trian"], 2, "no command 'trian'; did you mean 'train'? known: data, demo, embed"),
        (["train", "glyphs-tinny", "--out", "x"], 2, "did you mean 'glyphs-tiny'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_listings_and_mistakes_import_nothing_that_computes(
    arguments: list[str], code: int, output: str
) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert output in (done.stderr if code else done.stdout)


def test_completion_imports_nothing_that_computes() -> None:
    done = run(_DML_COMPLETE="bash_complete", COMP_WORDS="dml tr", COMP_CWORD="1")
    assert done.stdout == "plain,train\n"


def test_packages_and_plugins_import_nothing_that_computes() -> None:
    modules = "dml_core, dml_core.plugin, dml_losses.plugin, dml_eval_rs.plugin, dml_train"
    program = f"import sys, {modules}; sys.exit(', '.join({COMPUTES} & sys.modules.keys()) or None)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_ctrl_c_during_the_imports_leaves_no_traceback() -> None:
    program = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "dml_train.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from dml_train.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")
