"""Recipes that extend others: merging, compared with a reference over paths, and chains of
parents.
"""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dml_core import DmlError
from dml_train.cli import main
from dml_train.recipe.bundled import bundled_text, leading_comment
from dml_train.recipe.extending import merge, read_chain, read_source, resolve
from dml_train.recipe.loading import load_recipe

TABLE = object()

values = st.sampled_from([0, 1, "x", "y", [1], []])
tables = st.recursive(
    values,
    lambda inner: st.fixed_dictionaries(
        {}, optional={"name": values, "kind": values, "a": inner, "b": inner}
    ),
    max_leaves=6,
)
documents = st.fixed_dictionaries(
    {}, optional={"name": values, "kind": values, "a": tables, "b": tables}
)


def entries(document: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Map paths of a document to values; use `TABLE` for tables."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in document.items():
        found[*path, key] = TABLE if isinstance(value, dict) else value
        if isinstance(value, dict):
            found |= entries(value, (*path, key))
    return found


def reference(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    """Merge the child's paths with the parent's, except those that the child's values or components
    replace.
    """
    before, after = entries(parent), entries(child)

    def another(path: tuple[str, ...]) -> bool:
        both = before.get(path) is TABLE and after.get(path) is TABLE
        return both and any(
            (*path, s) in after and after[*path, s] != before.get((*path, s))
            for s in ("name", "kind")
        )

    def kept(path: tuple[str, ...]) -> bool:
        ways = [path[:n] for n in range(1, len(path) + 1)]
        if any(another(way) or after.get(way, TABLE) is not TABLE for way in ways):
            return False
        return path not in after or before[path] is TABLE

    result: dict[str, Any] = {}
    for path, value in ({p: v for p, v in before.items() if kept(p)} | after).items():
        table = result
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table.setdefault(path[-1], {}) if value is TABLE else table.update({path[-1]: value})
    return result


@given(documents, documents)
def test_merging_equals_the_reference_and_changes_neither_document(parent, child):
    copies = copy.deepcopy((parent, child))
    assert merge(parent, child) == reference(parent, child)
    assert (parent, child) == copies


@pytest.fixture
def write(tmp_path, tiny_document):
    """Write a complete recipe or, with `extends`, only the given tables."""

    def write(name, **document):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            tomli_w.dumps(document if "extends" in document else tiny_document(**document))
        )
        return path

    return write


def test_a_child_states_only_the_differences(write, registry):
    write("root.toml", loss={"scale": 2.0}, schedule={"loss.scale": {"kind": "linear", "end": 1.0}})
    path = write("child.toml", extends="root.toml", loss={"noise": 0.2}, training={"seed": 4})
    found = load_recipe(path, ["loss.scale=8"], registry).to_dict()
    assert found["loss"] == {"name": "tiny", "scale": 8.0, "noise": 0.2}
    assert (found["training"]["seed"], found["training"]["steps"]) == (4, 12)
    assert found["schedule"] == {"loss.scale": {"kind": "linear", "end": 1.0}}
    assert "extends" not in found


def test_another_component_keeps_no_option_of_the_parents(write, registry):
    write(
        "root.toml",
        loss={"scale": 2.0, "noise": 0.3},
        optimizer={"lr": 0.5},
        evaluation={"every": 2.0},
        schedule={"loss.scale": {"kind": "linear", "end": 1.0}},
    )
    step = {"kind": "step", "values": [1, 2], "milestones": [3]}
    path = write(
        "child.toml",
        extends="root.toml",
        loss={"name": "tiny-sparse"},
        optimizer={"name": "sgd"},
        evaluation={"name": "exact"},  # equals the parent's default
        schedule={"loss.scale": step},
    )
    found = load_recipe(path, [], registry).to_dict()
    assert found["loss"] == {"name": "tiny-sparse", "scale": 4.0, "declares": True}
    assert found["optimizer"]["lr"] == 1e-3
    assert found["evaluation"]["every"] == 2.0
    assert found["schedule"] == {"loss.scale": step}


def test_drop_removes_keys_and_tables_of_the_parent(write, registry):
    schedule = {
        "loss.scale": {"kind": "linear", "end": 1.0},
        "optimizer.lr": {"kind": "cosine", "end": 0.0},
    }
    write("root.toml", schedule=schedule)
    drop = ["training.steps", 'schedule."loss.scale"']
    path = write("child.toml", extends="root.toml", drop=drop, training={"epochs": 2.0})
    found = load_recipe(path, [], registry).to_dict()
    assert "steps" not in found["training"]
    assert found["schedule"] == {"optimizer.lr": {"kind": "cosine", "end": 0.0}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"extends": 3}, r"child.toml: extends is 3; expected a recipe's name or path"),
        ({"extends": ""}, r"child.toml: extends is ''; expected a recipe's name or path"),
        ({"extends": "root.toml", "drop": "loss"},
         r"drop is 'loss'; expected a list of dotted keys"),
        ({"extends": "root.toml", "drop": ["loss.scal"]},
         r"the parent has no key 'loss.scal'; did you mean 'scale'"),
        ({"extends": "root.toml", "drop": ["loss.scale.x"]},
         r"has no key 'loss.scale.x'; keys: none"),
        ({"extends": "root.toml", "drop": ["a b"]}, r"'a b' is not a dotted TOML key"),
        ({"extends": "none.toml"},
         r"child.toml extends '.*none.toml': can't read the recipe .*: No such file"),
        ({"extends": "glyph-tiny"},
         r"extends 'glyph-tiny': no recipe 'glyph-tiny'; did you mean 'glyphs-tiny'"),
        ({"extends": "root.toml", "loss": {"scael": 2}},
         r"child.toml \(extends .*root.toml\): loss 'tiny' .*'scael'"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_recipes_and_the_expected_value(write, registry, document, message):
    write("root.toml", loss={"scale": 2.0})
    with pytest.raises(DmlError, match=message):
        load_recipe(write("child.toml", **document), [], registry)


def test_drop_needs_a_parent_and_neither_it_nor_extends_can_be_set(tmp_path, write, registry):
    (tmp_path / "lonely.toml").write_text("drop = ['loss']\n")
    with pytest.raises(DmlError, match="drop is given, but extends is not"):
        load_recipe(tmp_path / "lonely.toml", [], registry)
    with pytest.raises(DmlError, match="can't set 'extends': it is resolved before any override"):
        load_recipe(write("root.toml"), ["extends=demo"], registry)


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_chains_of_any_length_are_resolved_and_circles_of_any_length_are_found(
    write, tmp_path, length
):
    write("0.toml", training={"seed": 0})
    for n in range(1, length):
        write(f"{n}.toml", extends=f"{n - 1}.toml", training={"seed": n})
    top = tmp_path / f"{length - 1}.toml"
    assert len(read_chain(top)) == length
    assert resolve(read_chain(top))["training"]["seed"] == length - 1
    for back in range(length):
        write("0.toml", extends=f"../{tmp_path.name}/{back}.toml")  # a different path to the file
        with pytest.raises(
            DmlError, match=r"extend each other in a circle: .*→.*0\.toml.*; remove extends"
        ):
            read_chain(top)


def test_a_parents_path_is_relative_to_the_child(write, registry, monkeypatch, tmp_path):
    write("below/root.toml", training={"seed": 7})
    write("below/child.toml", extends="root.toml")
    path = write("top.toml", extends="below/child.toml")
    monkeypatch.chdir(tmp_path.parent)
    assert load_recipe(path, [], registry).training.seed == 7
    assert load_recipe(path.relative_to(tmp_path.parent), [], registry).training.seed == 7


def test_a_file_extends_a_bundled_recipe_whatever_the_working_directory_holds(
    write, tmp_path, monkeypatch
):
    path = write("mine.toml", extends="glyphs-tiny", training={"steps": 3})
    (tmp_path / "glyphs-tiny").touch()
    monkeypatch.chdir(tmp_path)
    expected = tomllib.loads(bundled_text("glyphs-tiny"))
    expected["training"]["steps"] = 3
    assert resolve(read_chain(path)) == expected


def test_the_command_prints_a_recipe_resolved_below_its_comment(write, registry):
    write("root.toml", loss={"scale": 2.0})
    path = write("child.toml", extends="root.toml", loss={"noise": 0.2})
    path.write_text(f"# Mine, of two lines\n# in all.\n{path.read_text()}")
    done = CliRunner().invoke(main, ["recipes", str(path)], obj=registry)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(
        leading_comment(read_source(path).text) + "# Resolved; it extends "
    )
    assert tomllib.loads(done.output) == load_recipe(path, [], registry).to_dict()
