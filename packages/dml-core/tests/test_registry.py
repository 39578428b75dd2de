"""Find components by name; all errors in a recipe's table should be reported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Literal, get_args

import pytest

from dml_core import (
    CONTEXT,
    KINDS,
    Component,
    DuplicateName,
    InvalidOption,
    Kind,
    Option,
    Plugins,
    Registry,
    UnknownName,
    hookimpl,
    options_of,
    registry,
)


class Ranked:
    def __init__(
        self,
        margin: float = 0.4,
        *,
        temperature: float = 10.0,
        order: Literal["up", "down"] = "up",
        levels: Sequence[int] = (),
        count: int = 1,
        note: str | None = None,
    ) -> None:
        if margin < 0:
            raise ValueError(f"margin is {margin}; expected at least 0")
        self.margin = margin


class Classes:
    def __init__(self, num_classes: int, embedding_dim: int, temperature: float = 0.05) -> None:
        self.shape, self.temperature = (num_classes, embedding_dim), temperature


class Wrapper:
    def __init__(self, loss: object, num_steps: int) -> None:
        self.loss, self.num_steps = loss, num_steps


def free_for_all(**options: object) -> dict[str, object]:
    return options


def registry_of(*components: Component, kind: str = "losses") -> Registry:
    source = Plugins()
    source.register(plugin_with(*components, kind=kind), "test = a_plugin", "test-losses", "1.2")
    return Registry(source)


def plugin_with(*components: Component, kind: str = "losses") -> ModuleType:
    module = ModuleType("a_plugin")
    setattr(module, f"dml_{kind}", hookimpl(lambda: components))
    return module


RANKED = Component("ranked", Ranked, "a pair loss")
CLASSES = Component("classes", Classes, "a class loss")
WRAPPER = Component("wrapper", Wrapper, "wraps a loss")
RUN = {
    "num_classes": 10,
    "embedding_dim": 4,
    "steps_per_epoch": 5,
    "seed": 0,
}  # the context for losses


def test_a_factory_gets_the_keys_of_the_table_and_the_context_that_it_asks_for():
    loss = registry_of(CLASSES).build("losses", {"name": "classes", "temperature": 1}, RUN)
    assert loss.shape == (10, 4)
    assert loss.temperature == 1


def test_a_factory_receives_no_context_that_it_does_not_ask_for():
    assert registry_of(RANKED).build("losses", {"name": "ranked"}, RUN).margin == 0.4
    takes_all = registry_of(Component("any", free_for_all, "takes all"))
    assert takes_all.build("losses", {"name": "any", "a": 1}, RUN) == {"a": 1}


def test_the_table_wins_over_the_context():
    loss = registry_of(CLASSES).build("losses", {"name": "classes", "num_classes": 3}, RUN)
    assert loss.shape == (3, 4)


def test_a_nested_table_is_built_first_with_the_same_context():
    table = {"name": "wrapper", "num_steps": 5, "loss": {"name": "classes", "temperature": 0.1}}
    wrapper = registry_of(CLASSES, WRAPPER).build("losses", table, RUN)
    assert wrapper.loss.shape == (10, 4)
    assert wrapper.loss.temperature == 0.1


def test_a_factory_makes_the_component_of_a_deferred_table_itself():
    made = []

    class Counted(Classes):
        def __init__(self, num_classes: int, embedding_dim: int, temperature: float = 0.05) -> None:
            super().__init__(num_classes, embedding_dim, temperature)
            if temperature > 1:
                raise ValueError("temperature is above 1")
            made.append(self)

    components = registry_of(
        Component("counted", Counted, "a class loss"),
        Component("wrapper", Wrapper, "wraps a loss", deferred=["loss"]),
        Component("maker", lambda loss: loss(), "makes a loss", deferred=["loss"]),
    )
    table = {"name": "wrapper", "num_steps": 5, "loss": {"name": "counted", "temperature": 0.1}}
    wrapper = components.build("losses", table, RUN)
    assert made == []
    assert wrapper.loss().shape == (10, 4)
    assert made[0].temperature == 0.1
    table = {"name": "maker", "loss": {"name": "counted", "temperature": 2.0}}
    with pytest.raises(InvalidOption, match=r"loss 'counted' .*: temperature is above 1"):
        components.build("losses", table, RUN)
    with pytest.raises(InvalidOption, match="no option 'temprature'"):
        components.check(
            "losses", {"name": "maker", "loss": {"name": "counted", "temprature": 0.1}}
        )


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"name": "wrapper", "num_steps": 5, "loss": {"name": "classes", "temprature": 0.1}},
         InvalidOption,
         "no option 'temprature'; did you mean 'temperature'"),
        ({"name": "ranked", "margn": 1.0}, InvalidOption,
         r"\(Ranked of test-losses 1\.2\) has no option 'margn'; did you mean 'margin'\?"),
        ({"name": "wrapper", "loss": 3}, InvalidOption,
         r"needs 'num_steps'.*gives only num_classes, embedding_dim, steps_per_epoch, seed"),
        ({"name": "ranked", "margin": -1.0}, InvalidOption,
         r"loss 'ranked' \(Ranked of test-losses 1\.2\): margin is -1"),
        ({"margin": 0.4}, InvalidOption, r"needs a key 'name'.*got the keys: margin"),
        ({"name": "rankde"}, UnknownName,
         r"unknown loss 'rankde'; did you mean 'ranked'\? known: classes, ranked, wrapper"),
        ({"name": "pml/TripletMarginLoss"}, UnknownName,
         r"\nno installed plugin provides any loss 'pml/\.\.\.': .* its extra"),
    ],
    ids=["nested key", "key", "missing option", "rejected value", "no name", "name", "family"],
)  # fmt: skip
def test_a_mistake_in_a_table_says_what_came_and_what_was_expected(table, error, message):
    with pytest.raises(error, match=message):
        registry_of(RANKED, CLASSES, WRAPPER).build("losses", table, RUN)


def test_of_many_names_the_five_nearest_are_listed():
    words = ("one", "two", "three", "four", "five", "tow")
    with pytest.raises(UnknownName) as caught:
        registry_of(*(Component(f"loss-{word}", Ranked, "a loss") for word in words)).entry(
            "losses", "loss-twoo"
        )
    message = str(caught.value)
    assert message.startswith(
        "unknown loss 'loss-twoo'; did you mean 'loss-two'? nearest: loss-two, "
    )
    assert message.endswith("; 'dml plugins losses' lists all 6")
    assert message.count("loss-") == 7


def test_all_mistakes_of_a_table_and_its_nested_ones_are_reported_together():
    table = {"name": "wrapper", "num_stps": 5, "loss": {"name": "clases", "temprature": 0.1}}
    with pytest.raises(UnknownName) as caught:
        registry_of(CLASSES, WRAPPER).check("losses", table)
    found = str(caught.value).splitlines()
    expected = ["unknown loss 'clases'", "no option 'num_stps'", "needs 'num_steps'"]
    assert [part in line for part, line in zip(expected, found, strict=True)] == [True] * 3


def test_a_miss_lists_the_plugins_that_failed_to_load():
    source = Plugins([EntryPoint("triplets", "no_such_module", "dml")])
    with pytest.raises(
        UnknownName, match=r"1 plugin failed to load(.|\n)*triplets = no_such_module"
    ):
        Registry(source).build("losses", {"name": "triplet"}, RUN)


def test_two_plugins_with_one_name_are_an_error_that_names_both_distributions():
    source = Plugins()
    source.register(plugin_with(RANKED), "a = a", "losses-of-anna", "1.0")
    source.register(plugin_with(RANKED), "b = b", "losses-of-ben", "2.0")
    with pytest.raises(DuplicateName, match=r"losses-of-anna 1\.0 .* losses-of-ben 2\.0"):
        Registry(source).entries("losses")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("margin", "0.4", "float"),
        ("margin", True, "float"),
        ("count", 1.5, "int"),
        ("count", False, "int"),
        ("order", "sideways", "up"),
        ("levels", [1, "two"], "int"),
        ("levels", 3, "Sequence"),
        ("note", 3, "str"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_that_shows_it(key, value, expected):
    with pytest.raises(InvalidOption) as caught:
        registry_of(RANKED).build("losses", {"name": "ranked", key: value}, RUN)
    assert repr(value) in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("margin", 1),
        ("order", "down"),
        ("levels", [1, 2]),
        ("levels", []),
        ("note", "x"),
        ("note", None),
    ],
)
def test_values_that_fit_their_annotation(key, value):
    registry_of(RANKED).build("losses", {"name": "ranked", key: value}, RUN)


@pytest.mark.parametrize("context", [{}, {"embedding_dim": 4}, RUN | {"labels": [0, 1]}])
def test_a_context_that_is_not_exactly_the_kinds_is_an_error_of_the_caller(context):
    with pytest.raises(
        TypeError,
        match=r"'classes' .* expected exactly: num_classes, embedding_dim, steps_per_epoch, seed",
    ):
        registry_of(CLASSES).build("losses", {"name": "classes"}, context)


@pytest.mark.parametrize(
    "error", [AssertionError, AttributeError, KeyError, OverflowError, ZeroDivisionError]
)
def test_other_refusals_of_a_factory_are_errors_of_the_recipe_that_name_their_type(error):
    def refuse():
        raise error("p")

    with pytest.raises(InvalidOption, match=rf"loss 'refusing' .*: {error.__name__}: '?p"):
        registry_of(Component("refusing", refuse, "refuses")).build(
            "losses", {"name": "refusing"}, RUN
        )


def test_a_type_error_of_a_factory_is_an_error_of_the_recipe_and_its_dml_errors_stay_unchanged():
    def of_a_whole_number(seed):
        raise TypeError("seed is 0.5; expected an integer")

    def of_a_file(path):
        raise DuplicateName("the file uses a name twice")

    components = [
        Component("typed", of_a_whole_number, "raises a TypeError"),
        Component("file", of_a_file, "raises a DmlError"),
    ]
    with pytest.raises(
        InvalidOption,
        match=r"loss 'typed' \(.*of_a_whole_number of test-losses 1\.2\): seed is 0\.5",
    ):
        registry_of(*components).build("losses", {"name": "typed", "seed": 0.5}, RUN)
    with pytest.raises(DuplicateName, match=r"^the file uses a name twice$"):
        registry_of(*components).build("losses", {"name": "file", "path": "x"}, RUN)


def test_a_string_is_not_a_list_of_strings():
    def named(names: Sequence[str] = ()) -> Sequence[str]:
        return names

    components = registry_of(Component("named", named, "takes names"))
    assert components.build("losses", {"name": "named", "names": ["ab"]}, RUN) == ["ab"]
    with pytest.raises(InvalidOption, match="option 'names' is 'ab', of type str"):
        components.build("losses", {"name": "named", "names": "ab"}, RUN)


def test_an_unknown_kind_is_an_error():
    with pytest.raises(
        UnknownName, match="unknown kind of component 'loss'; did you mean 'losses'"
    ):
        registry_of(RANKED).entries("loss")  # type: ignore[arg-type]


@pytest.mark.parametrize("returned", [None, 3, [3], RANKED, [RANKED, None], ["a", RANKED]], ids=str)
def test_a_hook_that_returns_something_else_is_skipped_and_the_rest_works(returned):
    source = Plugins()
    wrong = ModuleType("wrong")
    wrong.dml_losses = hookimpl(lambda: returned)
    source.register(wrong, "wrong = wrong", "wrong-losses", "0.1")
    source.register(plugin_with(CLASSES), "right = right", "right-losses", "0.1")
    assert list(Registry(source).entries("losses")) == ["classes"]
    assert "wrong-losses 0.1" in str(source.failures[0])
    assert "dml_losses returned" in str(source.failures[0])
    assert "expected an iterable of Component" in str(source.failures[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_hook_and_a_context_that_its_factories_can_receive(kind):
    options = [Option(name) for name in CONTEXT[kind]]
    component = Component("a-thing", free_for_all, "a thing", options=options)
    context = dict.fromkeys(CONTEXT[kind], 3)
    assert registry_of(component, kind=kind).build(kind, {"name": "a-thing"}, context) == context


def test_the_kinds_that_types_know_are_the_kinds():
    assert get_args(Kind) == KINDS


def test_options_are_those_of_the_signature_with_annotations_and_defaults():
    def make(a: int, b: float = 0.5, *rest: int, c=None, **more: str) -> None: ...

    component = Component("made", make, "a thing")
    assert [(o.name, o.expected, o.required) for o in component.options] == [
        ("a", "int", True),
        ("b", "float", False),
        ("c", "Any", False),
    ]
    assert component.takes_any_option
    assert component.options == options_of(make)


def test_declared_options_replace_those_of_the_signature():
    options = [Option("margin", float, 0.4), Option("levels", Sequence[int]), Option("seed")]
    components = registry_of(
        Component("declared", free_for_all, "passes options on", options=options)
    )
    table = {"name": "declared", "levels": [1]}
    assert components.build("losses", table, RUN) == {"levels": [1], "seed": 0}
    for wrong, message in (
        ({"margn": 0.1}, r"no option 'margn'; did you mean 'margin'\? options: margin, levels$"),
        ({"levels": [0.5]}, r"option 'levels' is \[0\.5\]"),
    ):
        with pytest.raises(InvalidOption, match=message):
            components.check("losses", table | wrong)
    with pytest.raises(InvalidOption, match="needs 'levels'"):
        components.check("losses", {"name": "declared"})


def test_a_factory_without_a_signature_can_declare_its_options():
    component = Component("built-in", dict, "a summary", options=[Option("a", int)])
    assert registry_of(component).build("losses", {"name": "built-in", "a": 1}, RUN) == {"a": 1}


def test_the_registry_of_this_process_has_the_samplers_of_dml_core():
    assert {"class-balanced", "shuffled"} <= set(registry().entries("samplers"))


@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [
        ("triplet", "did you mean 'pml/TripletMarginLoss'?"),
        ("tripplet", "did you mean 'pml/TripletMarginLoss'?"),
        ("contrastive", "did you mean 'pml/ContrastiveLoss' or 'pml/SNRContrastiveLoss'?"),
        ("sup-con", "did you mean 'pml/SupConLoss'?"),
        ("arcface", "did you mean 'arc-face'?"),
        ("soft-tripel", "did you mean 'soft-triple'?"),
        ("los", "; nearest:"),
    ],
)
def test_another_librarys_class_is_suggested_by_a_word_of_its_name(wrong, suggested):
    names = ("arc-face", "soft-triple", "pml/ArcFaceLoss", "pml/ContrastiveLoss",
        "pml/SNRContrastiveLoss",
             "pml/SupConLoss", "pml/TripletMarginLoss")  # fmt: skip
    with pytest.raises(UnknownName, match=re.escape(suggested)):
        registry_of(*(Component(name, Ranked, "a loss") for name in names)).entry("losses", wrong)
