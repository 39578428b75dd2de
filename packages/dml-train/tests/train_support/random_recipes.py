"""Random recipes, valid and not: a tiny recipe with keys that were dropped, added or changed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import tomli_w
from hypothesis import strategies as st

from dml_core import InvalidOption, Kind, Registry
from dml_train.recipe.loading import load_recipe, set_value

COMPONENTS: dict[str, Kind] = {
    "backbone": "backbones",
    "dataset": "datasets",
    "logging": "loggers",
    "sampler": "samplers",
    "loss": "losses",
    "evaluation": "evaluators",
}
# Sizes either fit easily or exceed every address space; a size in between might be allocated.
HUGE = [10**13, 2**63 - 1, 2**63, 10**400, -(10**13), -(10**400)]
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    0.0,
    -0.0,
    0.5,
    1.0,
    -1.5,
    1e-300,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
    *HUGE,
]
TEXTS = ["", " ", "x" * 300, "é\U0001f600"]
TEXTS += ["nosuch", "exact", "adamw", "epoch", "cosine", "cpu", "cuda:99999999999", "a.b", "../x"]
SCALARS = [*NUMBERS, *TEXTS, True, False]
VALUES = st.one_of(
    st.sampled_from(SCALARS),
    st.lists(st.sampled_from(SCALARS), max_size=3),
    st.dictionaries(
        st.sampled_from(["name", "kind", "start", "end", "x", ""]),
        st.sampled_from(SCALARS),
        max_size=3,
    ),
)
FLOATS = st.sampled_from(
    [0.0, -0.0, 0.3, 1.0, 3.0, 1e4, -1.5, 1e-300, 1e300, math.inf, -math.inf, math.nan]
)
INTEGERS = st.sampled_from([0, 1, 2, 3, 5, 17, -1, *HUGE])
NEW_KEYS = [
    "",
    "name",
    "kind",
    "nosuch",
    "levels",
    "lr.momentum",
    "loss.temperature",
    "seed",
    "batch_size",
]
NEW_KEYS += ["milestones", "values"]
MOVED = ["", "loss", "loss.temperature", "loss.class_fraction", "loss.nosuch", "model.head"]
MOVED += [
    "optimizer.lr",
    "optimizer.weight_decay",
    "optimizer.lr_multipliers.head",
    "optimizer.momentum",
]
MOVED += ["model.batch_norm_trains"]
# Keys that are only valid together.
COMBINATIONS: list[dict[str, Any]] = [
    {"validation.class_fraction": 0.5, "evaluation.every": 1.0, "validation.patience": 1},
    {
        "validation.fold": 0,
        "validation.folds": 2,
        "evaluation.every": 1.0,
        "evaluation.test": False,
    },
    {"validation.on_test": True, "evaluation.every": 1.0, "validation.metric": "recall@1"},
    {
        "backbone.levels": ["block1", "block2"],
        "embedding.dim": [2, 3],
        "embedding.levels": ["block1"],
    },
    {"backbone.norm": "batch", "embedding.batch_norm": True, "training.micro_batch": 2},
    {"evaluation.metrics": ["recall@1", "map@r", "nmi"], "evaluation.n_clusters": 2},
    {"initialisation.class_weights": "class-means", "initialisation.adapt_batch_norm": 1.0},
    {"training.ema_decay": 0.5, "training.gradient_clip": 1.0, "training.precision": "bfloat16"},
    {
        "loss": {
            "name": "sampled-classes",
            "class_fraction": 0.5,
            "loss": {"name": "norm-softmax"},
        },
        "optimizer.name": "sgd",
        "optimizer.nesterov": True,
    },
]
SMALL = {
    "dataset.max_classes": 12,
    "sampler.classes_per_batch": 3,
    "backbone.widths": [8, 8],
    "embedding.dim": 4,
}


@cache
def small_recipe(registry: Registry) -> dict[str, Any]:
    """Return the document of a smaller glyphs-tiny with all defaults. Callers must copy the
    document to change it.
    """
    return load_recipe("glyphs-tiny", SMALL, registry).to_dict()


def alike(value: object) -> st.SearchStrategy[Any]:
    """Draw values of the same type as `value`, which more often pass the check of types."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return INTEGERS
    if isinstance(value, float):
        return FLOATS
    if isinstance(value, list) and value and not isinstance(value[0], Mapping):
        return st.lists(alike(value[0]), max_size=4)
    return st.sampled_from(TEXTS) if isinstance(value, str) else VALUES


def list_paths(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """List the paths of a document's keys, tables included."""
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, Mapping):
            yield from list_paths(value, (*above, key))


@st.composite
def schedules(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a schedule's table with few mistakes."""
    number = st.one_of(FLOATS, INTEGERS)
    keys = {
        "constant": {"value": number},
        "linear": {"start": number, "end": number, "length": number, "begin": number},
        "cosine": {"start": number, "end": number, "length": number},
        "step": {
            "values": st.lists(number, max_size=3),
            "milestones": st.lists(number, max_size=2),
        },
    }
    kind = draw(st.sampled_from(sorted(keys)))
    optional = {"unit": st.sampled_from(["step", "epoch", "run"]), "warmup": number, "": VALUES}
    return {"kind": kind, **draw(st.fixed_dictionaries({}, optional={**keys[kind], **optional}))}


@st.composite
def recipes(draw: st.DrawFn, registry: Registry) -> str:
    """Draw the text of a recipe with up to three changes."""
    document = copy.deepcopy(small_recipe(registry))
    for _ in range(draw(st.integers(0, 3))):
        change = draw(
            st.sampled_from(
                [
                    "alike",
                    "alike",
                    "alike",
                    "set",
                    "drop",
                    "add",
                    "component",
                    "schedule",
                    "combine",
                ]
            )
        )
        if change == "component":
            table = draw(st.sampled_from(sorted(COMPONENTS)))
            name = draw(st.sampled_from([*registry.entries(COMPONENTS[table]), "nosuch"]))
            entries = registry.entries(COMPONENTS[table])
            options = list(entries[name].component.options) if name in entries else []
            component: dict[str, Any] = {"name": name}
            for option in draw(st.lists(st.sampled_from(options), max_size=3)) if options else ():
                component[option.name] = draw(VALUES if option.required else alike(option.default))
            document[table] = {"loggers": [component]} if table == "logging" else component
            continue
        if change == "schedule":
            document["schedule"] = {draw(st.sampled_from(MOVED)): draw(schedules())}
            continue
        if change == "combine":
            for path, value in draw(st.sampled_from(COMBINATIONS)).items():
                with suppress(InvalidOption):  # an earlier change replaced the table by a value
                    set_value(
                        document,
                        path,
                        draw(st.one_of(st.just(value), st.just(value), alike(value))),
                    )
            continue
        paths = list(list_paths(document))
        if not paths:
            continue
        *above, key = draw(st.sampled_from(paths))
        owner = document
        for name in above:
            owner = owner[name]
        if change == "drop":
            del owner[key]
        else:
            name = draw(st.sampled_from(NEW_KEYS)) if change == "add" else key
            owner[name] = draw(alike(owner[key]) if change == "alike" else VALUES)
    return tomli_w.dumps(document)
