"""Load plugins: working plugins are kept; broken plugins should be named and skipped."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from dml_core import (
    Component,
    DmlError,
    Option,
    PluginLoadError,
    Plugins,
    Registry,
    hookimpl,
    plugins,
    signature_of,
)


def nothing():
    return []


def make_plugin(**hooks: object) -> ModuleType:
    module = ModuleType("a_plugin")
    for name, function in hooks.items():
        setattr(module, name, hookimpl(function))
    return module


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module that can be imported; return the file."""
    monkeypatch.syspath_prepend(tmp_path)
    files: list[Path] = []

    def write(name: str, text: str) -> Path:
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(text)
        return files[-1]

    yield write
    for file in files:
        sys.modules.pop(file.stem, None)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Make a module importable and return an entry point."""

    def install(module: ModuleType, name: str) -> EntryPoint:
        monkeypatch.setitem(sys.modules, name, module)
        return EntryPoint(name.replace("_", "-"), name, "dml")

    return install


def test_this_process_has_the_plugin_of_dml_core_with_its_version():
    provider = next(p for p in plugins().providers if p.distribution == "dml-core")
    assert provider.entry_point == "core = dml_core.plugin"
    assert provider.version == "0.1.0"


def test_a_plugin_that_cannot_be_imported_is_skipped_and_the_rest_works(installed):
    good = installed(make_plugin(dml_losses=nothing), "good_plugin")
    loaded = Plugins([EntryPoint("broken", "no_such_module_at_all", "dml"), good])
    assert [p.entry_point for p in loaded.providers] == ["good-plugin = good_plugin"]
    (failure,) = loaded.failures
    assert "broken = no_such_module_at_all" in str(failure)
    assert "ModuleNotFoundError" in str(failure)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("raise SystemExit", "SystemExit"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class Odd(BaseException): pass\nraise Odd('odd')", "Odd: odd"),
        ("import os; os.close(-1)", "OSError"),
        ("raise ZeroDivisionError('at import')", "ZeroDivisionError: at import"),
    ],
)
def test_a_plugin_that_raises_anything_at_its_import_is_skipped(write, installed, code, named):
    write("ending_plugin", code)
    good = installed(make_plugin(dml_losses=nothing), "good_plugin")
    loaded = Plugins([EntryPoint("ending", "ending_plugin", "dml"), good])
    assert len(loaded.providers) == 1
    assert named in str(loaded.failures[0])


def test_ctrl_c_stops_the_loading(write):
    write("interrupted_plugin", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        Plugins([EntryPoint("interrupted", "interrupted_plugin", "dml")])


def test_twenty_plugins_of_which_every_second_one_exits(installed):
    def exits():
        raise SystemExit(1)

    def one(number):
        return lambda: [Component(f"loss-{number}", nothing, "a loss")]

    hooks = [exits if number % 2 else one(number) for number in range(20)]
    loaded = Plugins(
        [installed(make_plugin(dml_losses=h), f"plugin_{n}") for n, h in enumerate(hooks)]
    )
    assert len(Registry(loaded).entries("losses")) == 10
    assert len(loaded.failures) == 10


def test_a_misspelt_hook_is_an_error_that_names_the_nearest(installed):
    loaded = Plugins([installed(make_plugin(dml_loses=nothing), "misspelt_plugin")])
    assert "unknown hook 'dml_loses'; did you mean 'dml_losses'?" in str(loaded.failures[0])
    assert not loaded.providers
    assert loaded.manager.get_plugins() == set()


def test_a_hook_that_asks_for_an_unknown_argument_is_skipped(installed):
    loaded = Plugins([installed(make_plugin(dml_step_end=lambda stepp: None), "argument_plugin")])
    assert "stepp" in str(loaded.failures[0])


@pytest.mark.parametrize("value", ["1", "yes"])
def test_the_environment_variable_makes_a_failure_fatal(monkeypatch, value):
    monkeypatch.setenv("DML_STRICT_PLUGINS", value)
    with pytest.raises(PluginLoadError, match="broken = no_such_module"):
        Plugins([EntryPoint("broken", "no_such_module", "dml")])


@pytest.mark.parametrize("value", ["", "0"])
def test_the_environment_variable_can_say_no(monkeypatch, value):
    monkeypatch.setenv("DML_STRICT_PLUGINS", value)
    assert len(Plugins([EntryPoint("broken", "no_such_module", "dml")]).failures) == 1


def test_a_plugin_can_be_added_by_hand():
    loaded = Plugins()
    loaded.register(make_plugin(dml_losses=nothing))
    assert loaded.providers[0].distribution == "unpackaged"
    with pytest.raises(DmlError, match="unknown hook"):
        loaded.register(make_plugin(dml_nothing_like_it=nothing))


@pytest.mark.parametrize(
    "name", ["Norm-Softmax", "norm_softmax", "", "a--b", "-a", "a/b/c", "norm softmax"]
)
def test_a_component_name_is_kebab_case(name):
    with pytest.raises(ValueError, match="kebab-case"):
        Component(name, nothing, "a summary")


@pytest.mark.parametrize(
    "name", ["a", "norm-softmax", "pml/ContrastiveLoss", "resnet50", "bn-inception-v2"]
)
def test_component_names_that_are_allowed(name):
    assert Component(name, nothing, "a summary").source == ""


def test_a_component_needs_a_callable_factory_and_a_summary_of_one_line():
    with pytest.raises(TypeError, match="factory is 3"):
        Component("three", 3, "a summary")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no signature that can be read"):
        Component("built-in", dict, "a summary")
    for summary in ("", "  ", "two\nlines"):
        with pytest.raises(ValueError, match="summary"):
            Component("three", nothing, summary)


def test_a_reference_is_imported_when_the_component_is_used(write):
    make = "def make(scale: float = 2.0, *, margin: int):\n        return scale\n"
    write("lazy_losses", f"class Outer:\n    {make}")
    component = Component("lazy", "lazy_losses:Outer.make", "a loss")
    assert "lazy_losses" not in sys.modules
    assert [(option.name, option.annotation, option.required) for option in component.options] == [
        ("scale", float, False),
        ("margin", int, True),
    ]
    assert component.factory(3.0, margin=1) == 3.0
    assert not component.takes_any_option


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "no_such_module:Loss",
            "can't import no_such_module:Loss: ModuleNotFoundError: No module named",
        ),
        (
            "broken_losses:Loss",
            r"ZeroDivisionError: division by zero \(.*broken_losses.py, line 2\)",
        ),
        ("good_losses:Los", "has no attribute 'Los'"),
        ("good_losses:number", "good_losses:number is 3; expected a class or function"),
    ],
    ids=["module", "import", "name", "number"],
)
def test_a_reference_that_leads_nowhere_is_an_error_at_its_use(write, reference, message):
    write("broken_losses", "\n1 / 0\n")
    write("good_losses", "number = 3\n")
    component = Component("lazy", reference, "a loss")
    loaded = Plugins()
    loaded.register(make_plugin(dml_losses=lambda: [component]))
    with pytest.raises(DmlError, match=message):
        Registry(loaded).build("losses", {"name": "lazy"}, {})


@pytest.mark.parametrize("reference", ["", "module", "module:", ":name", "a b:c", "module:a:b"])
def test_a_reference_names_a_module_and_an_object(reference):
    with pytest.raises(ValueError, match="expected 'module:name'"):
        Component("lazy", reference, "a loss")


def test_a_failure_names_the_file_and_the_line(write):
    missing = write("missing_import", "import sys\n\nimport no_such_module_either\n")
    invalid = write("not_python", "x = 1\ndef f(:\n")
    loaded = Plugins(
        [EntryPoint("a", "missing_import", "dml"), EntryPoint("b", "not_python", "dml")]
    )
    first, second = map(str, loaded.failures)
    assert first.endswith(f"({missing}, line 3)")
    assert second.endswith(f"({invalid}, line 2)")


def test_a_factory_declares_its_options_by_its_signature():
    def make(**options):
        return options

    declared = [Option("margin", float, 0.5), Option("labels")]
    make.__signature__ = signature_of(declared)
    component = Component("declared", make, "a loss")
    assert component.options == tuple(declared)
    assert not component.takes_any_option
