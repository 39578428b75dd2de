"""Check that the pages list all losses, that the recipes are valid, and that the README's examples
run.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dml_core import Plugins, Registry, schedule_from_table
from dml_losses import plugin

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/losses.md").read_text(encoding="utf-8")
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
NAMES = [
    component.name for component in plugin.dml_losses() if not component.name.startswith("pml/")
]


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_has_a_row(name: str) -> None:
    assert re.search(rf"^\| `{name}` \|", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL))
def test_every_recipe_on_the_page_is_valid(text: str) -> None:
    plugins = Plugins()
    plugins.register(plugin, distribution="dml-losses", version="0.1.0")
    recipe = tomllib.loads(text)
    if "loss" in recipe:
        Registry(plugins).check("losses", recipe["loss"])
    for table in recipe.get("schedule", {}).values():
        schedule = schedule_from_table(table, num_steps=100, steps_per_epoch=10)
        assert schedule(0) > schedule(99)


def test_the_readmes_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for text in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(text, names)
    first, *_, last = re.findall(r"loss ([\d.]+)", capsys.readouterr().out)
    assert float(last) < float(first)
