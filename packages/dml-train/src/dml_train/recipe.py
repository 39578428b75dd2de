"""Recipes: TOML files whose tables are the registries, checked whole before anything starts."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from dml_core import DmlError, InvalidOption, Registry, nearest
from dml_core.registry import Kind
from dml_train.bundled import bundled_text
from dml_train.model import Pooling

# What the trainer gives to the factories of each kind, on top of the recipe's table.
CONTEXT: dict[Kind, tuple[str, ...]] = {
    "datasets": ("seed",),
    "samplers": ("labels", "seed"),
    "backbones": ("in_channels", "pretrained"),
    "losses": ("num_classes", "embedding_dim", "seed"),
    "evaluators": ("seed",),
    "loggers": ("directory", "start_step"),
}

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Unit = Literal["step", "epoch"]


class Table(BaseModel):
    """A table of a recipe: no key but its own, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")


class Training(Table):
    """``[training]``: how long, on what, in which arithmetic."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Annotated[int, Field(ge=1)] | None = None
    epochs: Positive | None = None
    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    gradient_clip: Positive | None = None
    workers: Annotated[int, Field(ge=0)] = 0
    channels_last: bool = False
    deterministic: bool = False
    freeze_batch_norm: bool = False
    sync_batch_norm: bool = False
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    compile: bool = False
    average: Annotated[float, Field(gt=0, lt=1)] | None = None  # decay of a moving average of the weights
    timeout: Positive = 600.0  # seconds for which one rank waits for another

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if (self.steps is None) == (self.epochs is None):
            given = "neither" if self.steps is None else f"steps = {self.steps} and epochs = {self.epochs}"
            raise ValueError(f"{given} given; expected exactly one of 'steps' and 'epochs'")
        return self


def _one_or_each(value: object) -> str:
    return _EACH if isinstance(value, list) else _ONE


# Tags by which pydantic finds the branch that was meant, so that only its mistakes are told.
_ONE, _EACH = "(one)", "(each)"
T = TypeVar("T")
OneOrEach = Annotated[Annotated[T, Tag(_ONE)] | Annotated[list[T], Tag(_EACH)], Discriminator(_one_or_each)]


class Level(NamedTuple):
    """What is made of one level of the backbone."""

    dim: int
    pooling: Pooling
    weight: float


class Embedding(Table):
    """``[embedding]``: the head; where the backbone gives several levels, a value for all or a list, one for each.

    The embedding is that of all levels joined. `level_weight` multiplies each level's loss.
    """

    dim: OneOrEach[Size] = 512
    pooling: OneOrEach[Pooling] = "average"
    layer_norm: bool = True
    batch_norm: bool = False
    level_weight: OneOrEach[NotNegative] = 1.0

    def of_levels(self, count: int) -> list[Level]:
        """The table spread out over so many levels.

        Raises:
            InvalidOption: a list of another length, or a weight where there is one level.
        """
        given = {"dim": self.dim, "pooling": self.pooling, "level_weight": self.level_weight}
        spread: dict[str, list[Any]] = {}
        for name, value in given.items():
            spread[name] = value if isinstance(value, list) else [value] * count
            if len(spread[name]) != count:
                raise InvalidOption(
                    f"embedding.{name} is {value!r}; expected one value for all, or a list of {count}: the backbone "
                    f"gives {count} {'level' if count == 1 else 'levels'} (see backbone.levels)"
                )
        if count == 1 and spread["level_weight"] != [1.0]:
            raise InvalidOption(
                f"embedding.level_weight is {self.level_weight!r}, and the backbone gives one level only; "
                "leave it out, or name several levels in backbone.levels"
            )
        return [Level(*values) for values in zip(*spread.values(), strict=True)]


class Optimizer(Table):
    """``[optimizer]``: `backbone`, `head` and `loss` multiply the learning rate of that part's parameters."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: NotNegative = 1e-3
    weight_decay: NotNegative = 1e-4
    backbone: NotNegative = 1.0
    head: NotNegative = 1.0
    loss: NotNegative = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Positive = 1e-8

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value  # TOML has arrays only


class Checkpoints(Table):
    """``[checkpoints]``: when one is written (0: only at the end), and how many are kept."""

    every: NotNegative = 1.0
    unit: Unit = "epoch"
    keep: Annotated[int, Field(ge=1)] = 2


class Evaluation(Table):
    """``[evaluation]``: the evaluator and its options, and how often it is asked during training (0: at the end).

    Without `test` the test split stays unseen: a finished run is measured on the classes held out. That is for
    searches of settings, whose runs are many and must not see it.
    """

    model_config = ConfigDict(extra="allow")

    name: str = "exact"
    every: NotNegative = 0.0
    unit: Unit = "epoch"
    test: bool = True

    def component(self) -> dict[str, Any]:
        """The evaluator's table in the registry's form."""
        return {"name": self.name, **(self.model_extra or {})}


class Validation(Table):
    """``[validation]``: which of the training classes are held out, and what is done with them.

    Held out is a random fraction `classes`, or part number `fold` (from 0) of `folds` equal parts in the order of
    the split's classes. Each evaluation during training then measures these classes and not the test split; the run
    ends with the weights that were best by `metric`, early after `patience` evaluations without a better one
    (0: never). With `on_test` the test split itself chooses the weights, as in many published tables: its figures
    are then no measure of what new classes would give.
    """

    classes: Annotated[float, Field(ge=0, lt=1)] = 0.0
    fold: Annotated[int, Field(ge=0)] | None = None
    folds: Annotated[int, Field(ge=2)] | None = None
    on_test: bool = False
    metric: str = "map_at_r"
    patience: Annotated[int, Field(ge=0)] = 0

    @property
    def holds_out(self) -> bool:
        """Whether classes are held out."""
        return self.classes > 0 or self.folds is not None

    @property
    def selects(self) -> bool:
        """Whether evaluations during training choose the weights."""
        return self.holds_out or self.on_test

    @model_validator(mode="after")
    def _one_way(self) -> Validation:
        if (self.fold is None) != (self.folds is None):
            given = "fold" if self.folds is None else "folds"
            raise ValueError(f"only {given} = {getattr(self, given)} is given; expected both fold and folds")
        if self.fold is not None and self.folds is not None and self.fold >= self.folds:
            raise ValueError(f"fold = {self.fold} of folds = {self.folds}; expected 0 to {self.folds - 1}")
        ways = [
            f"{name} = {value}"
            for name, value in (
                ("classes", self.classes),
                ("folds", self.folds),
                ("on_test", self.on_test and "true"),
            )
            if value
        ]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} are given; expected at most one of them")
        return self


class Logging(Table):
    """``[logging]``: the loggers' tables, and how many steps lie between two readings of the device."""

    every: Annotated[int, Field(ge=1)] = 10
    loggers: list[dict[str, Any]] = [{"name": "jsonl"}, {"name": "tensorboard"}]


class Recipe(Table):
    """A whole recipe. `dataset`, `backbone`, `sampler` and `loss` are tables of the registry."""

    training: Training
    dataset: dict[str, Any]
    backbone: dict[str, Any]
    sampler: dict[str, Any]
    loss: dict[str, Any]
    embedding: Embedding = Embedding()
    optimizer: Optimizer = Optimizer()
    schedule: dict[str, dict[str, Any]] = {}
    checkpoints: Checkpoints = Checkpoints()
    evaluation: Evaluation = Evaluation()
    validation: Validation = Validation()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _validated_sometime(self) -> Recipe:
        table = self.validation
        if table.selects and not self.evaluation.every:
            way = "classes" if table.classes else "folds" if table.folds else "on_test"
            raise ValueError(f"validation.{way} is given; expected evaluation.every above 0, too")
        if table.patience and not table.selects:
            raise ValueError("validation.patience is given; expected validation.classes above 0, too")
        if not self.evaluation.test and not table.holds_out:
            raise ValueError(
                "evaluation.test is false and no classes are held out, so nothing would be measured; "
                "expected validation.classes above 0, or validation.fold and validation.folds"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """The recipe in TOML's types; what is None is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """The recipe as a file, to be read again by `load`."""
        return tomli_w.dumps(self.to_dict())


def load(source: str | Path, assignments: Sequence[str], registry: Registry) -> Recipe:
    """The recipe of a file or of a bundled name, with some keys set, whole and checked.

    Args:
        source: a path, or the name of a recipe that comes with the package.
        assignments: ``"loss.scale=32"``, …: each is read as a line of TOML; what isn't one is taken as a string.
        registry: where the components' names and keys are looked up.

    Raises:
        DmlError: anything that is wrong with it, with the key and what was expected there.
    """
    document, origin = read(source)
    for assignment in assignments:
        assign(document, assignment)
    return parse(document, registry, origin)


def parse(document: Mapping[str, Any], registry: Registry, origin: str = "the recipe") -> Recipe:
    """The recipe that a TOML document describes, every default filled in.

    Raises:
        DmlError: as `load`.
    """
    try:
        recipe = Recipe.model_validate(document)
    except ValidationError as error:
        problems = [_explain(details) for details in error.errors()]
        raise InvalidOption(f"{origin}: " + "\n".join(problems)) from error
    filled: dict[str, Any] = {}
    tables: dict[str, tuple[Kind, dict[str, Any]]] = {
        "dataset": ("datasets", recipe.dataset),
        "backbone": ("backbones", recipe.backbone),
        "sampler": ("samplers", recipe.sampler),
        "loss": ("losses", recipe.loss),
        "evaluation": ("evaluators", recipe.evaluation.component()),
    }
    try:
        for name, (kind, table) in tables.items():
            registry.check(kind, table, CONTEXT[kind])
            filled[name] = with_defaults(registry, kind, table)
        loggers = []
        for table in recipe.logging.loggers:
            registry.check("loggers", table, CONTEXT["loggers"])
            loggers.append(with_defaults(registry, "loggers", table))
    except DmlError as error:
        raise type(error)(f"{origin}: {error}") from error
    evaluation = recipe.evaluation.model_dump() | filled.pop("evaluation")
    return recipe.model_copy(
        update=filled
        | {
            "evaluation": Evaluation.model_validate(evaluation),
            "logging": recipe.logging.model_copy(update={"loggers": loggers}),
        }
    )


def with_defaults(registry: Registry, kind: Kind, table: Mapping[str, Any]) -> dict[str, Any]:
    """A component's table with its factory's own defaults, as far as TOML can write them."""
    factory = registry.entry(kind, table["name"]).component.factory
    filled: dict[str, Any] = {"name": table["name"]}
    for name, parameter in inspect.signature(factory).parameters.items():
        default = parameter.default
        if name not in CONTEXT[kind] and isinstance(default, bool | int | float | str | list | tuple):
            filled[name] = list(default) if isinstance(default, tuple) else default
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            filled[key] = with_defaults(registry, kind, value)
        elif type(value) is int and isinstance(filled.get(key), float):
            filled[key] = float(
                value
            )  # `scale = 32` is meant as 32.0, and a schedule may move it in fractions
        else:
            filled[key] = value
    return filled


def differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[str]:
    """What differs between two recipes: ``loss.scale: 64.0 there, 32.0 here``, one line a key."""
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        there, here = old.get(key), new.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            found += differences(there, here, f"{path}{key}.")
        elif there != here:
            found.append(f"{path}{key}: {there!r} there, {here!r} here")
    return found


def read(source: str | Path) -> tuple[dict[str, Any], str]:
    """The TOML document of a file or of a bundled name, not yet checked, and what to call it in messages.

    Raises:
        DmlError: if there is no such file or name, or it isn't TOML.
    """
    text, origin = _text(source)
    try:
        return tomllib.loads(text), origin
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"{origin} is not TOML: {error}") from error


def _text(source: str | Path) -> tuple[str, str]:
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except OSError as error:
            raise DmlError(f"can't read the recipe {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DmlError(f"the recipe {path} is not UTF-8 text: {error}") from error
    return bundled_text(str(source)), f"recipe {source}"


def assign(document: dict[str, Any], assignment: str) -> None:
    """Carry out ``KEY=VALUE`` on a TOML document: read as a line of TOML, or else with the value as a string.

    Raises:
        InvalidOption: if it has no ``=``, the key isn't a dotted TOML key, or leads through what isn't a table.
    """
    key, equals, value = assignment.partition("=")
    if not equals or not key.strip():
        raise InvalidOption(f"--set {assignment!r}: expected KEY=VALUE, e.g. --set loss.scale=32")
    try:
        change = tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        try:
            change = tomllib.loads(f"{key} = {tomli_w.dumps({'x': value}).partition('=')[2]}")
        except tomllib.TOMLDecodeError as error:
            raise InvalidOption(f"--set {assignment!r}: {key!r} is not a dotted TOML key: {error}") from error
    _merge(document, change, assignment)


def _merge(document: dict[str, Any], change: dict[str, Any], assignment: str) -> None:
    for key, value in change.items():
        present = document.get(key)
        if isinstance(value, dict) and present is not None:
            if not isinstance(present, dict):
                raise InvalidOption(
                    f"--set {assignment!r}: {key!r} is {present!r} in the recipe, not a table"
                )
            _merge(present, value, assignment)
        else:
            document[key] = value


def _explain(details: ErrorDetails) -> str:
    """One of pydantic's findings in the words of a recipe."""
    location = [str(part) for part in details["loc"] if part not in (_ONE, _EACH)]
    path, key = ".".join(location), location[-1] if location else ""
    if details["type"] == "extra_forbidden":
        table: type[BaseModel] = Recipe
        for part in location[:-1]:
            annotation = table.model_fields[part].annotation
            assert isinstance(annotation, type)
            table = annotation
        where = f"table [{'.'.join(location[:-1])}] has" if location[:-1] else "a recipe has"
        known = list(table.model_fields)
        return f"{where} no key {key!r}{nearest(key, known)} keys: {', '.join(known)}"
    if details["type"] == "missing":
        return f"the table [{path}] is missing" if len(location) == 1 else f"{path} is missing"
    message = details["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if details["type"] != "value_error":
        return f"{path} is {details['input']!r}: {message}"
    return f"[{path}]: {message}" if path else message
