"""What a recipe may say: its tables, their keys, and what differs between two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from dml_core import InvalidOption
from dml_train.networks.model import Pooling

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
    return EACH if isinstance(value, list) else ONE


# Tags by which pydantic finds the branch that was meant, so that only its mistakes are told.
ONE, EACH = "(one)", "(each)"
T = TypeVar("T")
OneOrEach = Annotated[Annotated[T, Tag(ONE)] | Annotated[list[T], Tag(EACH)], Discriminator(_one_or_each)]


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
        """The recipe as a file, to be read again by `dml_train.recipe.loading.load`."""
        return tomli_w.dumps(self.to_dict())


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
