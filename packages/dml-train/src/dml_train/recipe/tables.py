"""A recipe's tables, their keys, and the differences of two recipes."""

from __future__ import annotations

import importlib.util
import json
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
from dml_train.networks import Pooling
from dml_train.processes.limits import MOST_PROCESSES

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
LONGEST = 2**53  # steps or epochs: positions in a run are exact as floats, and no product of them is infinite
Period = Annotated[float, Field(ge=0, le=LONGEST)]
Size = Annotated[int, Field(ge=1)]
Unit = Literal["step", "epoch"]


class Table(BaseModel):
    """A table of a recipe; unknown keys and values of another type are refused.

    The text below a key is its documentation: `dml recipes --keys` and docs/reference/recipe-tables.md show it.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        use_attribute_docstrings=True,
    )


class Training(Table):
    """``[training]``: length, device and arithmetic."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of every random choice"""
    steps: Annotated[int, Field(ge=1, le=LONGEST)] | None = None
    """length of the run; or give `epochs`"""
    epochs: Annotated[float, Field(gt=0, le=LONGEST)] | None = None
    """length of the run; or give `steps`"""
    device: str = "auto"
    """`"auto"`, `"cpu"`, `"mps"`, `"cuda"` or `"cuda:0"`"""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """arithmetic, by autocast"""
    gradient_clip: Positive | None = None
    """largest norm of the gradient"""
    workers: Annotated[int, Field(ge=0, le=MOST_PROCESSES)] = 0
    """processes that load images"""
    channels_last: bool = False
    """use `torch.channels_last`"""
    deterministic: bool = False
    """use `torch.use_deterministic_algorithms`"""
    freeze_batch_norm: bool = False
    """the backbone's batch norms neither learn nor update their statistics"""
    trained_layers: Annotated[int, Field(ge=0)] | None = None
    """train only this many last layers of the backbone; the others keep weights and statistics of batch norms,
    and have no state in the optimizer"""
    sync_batch_norm: bool = False
    """batch norms share their statistics over ranks"""
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    """images in the network at a time, with the gradient of the whole batch"""
    compile: bool = False
    """use `torch.compile`"""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """decay of the weights' moving average; the average is measured and saved"""
    timeout: Annotated[float, Field(gt=0, le=1e9)] = 600.0
    """seconds that ranks wait for one another"""

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if (self.steps is None) == (self.epochs is None):
            given = "neither" if self.steps is None else f"steps = {self.steps} and epochs = {self.epochs}"
            raise ValueError(f"{given} given; expected exactly one of 'steps' and 'epochs'")
        return self


def _variant(value: object) -> str:
    return _LIST if isinstance(value, list) else _SCALAR


# Pydantic chooses the variant by its tag, so that only errors of that variant are reported. Locations contain the tag.
VARIANT_TAGS = _SCALAR, _LIST = "(scalar)", "(list)"
T = TypeVar("T")
ScalarOrList = Annotated[Annotated[T, Tag(_SCALAR)] | Annotated[list[T], Tag(_LIST)], Discriminator(_variant)]


class Level(NamedTuple):
    """The head of one level of the backbone."""

    dim: int
    pooling: Pooling
    weight: float


class Embedding(Table):
    """``[embedding]``: the head. If the backbone gives several levels, a key has one value for all or a list."""

    dim: ScalarOrList[Size] = 512
    """length of the embedding; of each level"""
    pooling: ScalarOrList[Pooling] = "average"
    """`"average"`, `"max"`, `"both"` (their sum) or `"gem"` (generalised mean, learned power)"""
    layer_norm: bool = True
    """layer norm without parameters before the linear layer"""
    batch_norm: bool = False
    """batch norm without parameters after the linear layer"""
    bias: bool = True
    """the linear layer has a bias"""
    linear: bool = True
    """`false`: the embedding is the pooled features, and `dim` their number"""
    levels: list[str] = []
    """concatenate only these of `backbone.levels`; all of them train"""
    level_weight: ScalarOrList[NotNegative] = 1.0
    """factor of each level's loss"""

    def of_levels(self, count: int) -> list[Level]:
        """Expand the table to `count` levels.

        Raises:
            InvalidOption: for a list of another length, or a weight of a single level.
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
                "omit it, or name several levels in backbone.levels"
            )
        return [Level(*values) for values in zip(*spread.values(), strict=True)]


class Initialisation(Table):
    """``[initialisation]``: what precedes the first step of a new run."""

    class_weights: Literal["default", "uniform-by-classes", "class-means"] = "default"
    """`"default"`: as the loss draws them; `"uniform-by-classes"`: uniform from ±1/√C, C classes;
    `"class-means"`: the mean embedding of each class's training images"""
    adapt_batch_norm: Period = 0.0
    """epochs of forward passes that only update the statistics of batch norms"""


class LrMultipliers(Table):
    """``optimizer.lr_multipliers``: factors of the learning rate of each part's parameters."""

    backbone: NotNegative = 1.0
    head: NotNegative = 1.0
    loss: NotNegative = 1.0


class Optimizer(Table):
    """``[optimizer]``: the algorithm and its hyper-parameters."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    """`"adamw"`, `"adam"` (the decay is part of the gradient) or `"sgd"`"""
    lr: NotNegative = 0.001
    """learning rate"""
    weight_decay: NotNegative = 0.0001
    """of parameters with two or more dimensions"""
    lr_multipliers: LrMultipliers = LrMultipliers()
    """`backbone`, `head` and `loss`: multiples of `lr` for that part's parameters"""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """rate of a layer of the backbone, as a multiple of the next layer's; the last one has the backbone's rate"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """of SGD"""
    nesterov: bool = False
    """of SGD"""
    betas: tuple[float, float] = (0.9, 0.999)
    """of AdamW and Adam"""
    eps: Positive = 1e-08
    """of AdamW and Adam"""

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value  # TOML has arrays only


class Checkpoints(Table):
    """``[checkpoints]``: when, and how many."""

    every: Period = 1.0
    """interval of checkpoints; 0: only at the end"""
    unit: Unit = "epoch"
    """of `every`: `"epoch"` or `"step"`"""
    keep: Annotated[int, Field(ge=1)] = 2
    """how many to keep"""


class Evaluation(Table):
    """``[evaluation]``: the evaluator, its options, and the interval during training."""

    model_config = ConfigDict(extra="allow")

    name: str = "exact"
    """evaluator; all keys but those of this table are its options"""
    every: Period = 0.0
    """interval of evaluations during training; 0: only at the end"""
    unit: Unit = "epoch"
    """of `every`: `"epoch"` or `"step"`"""
    test: bool = True
    """`false` leaves the test split unseen; a finished run is measured on the held-out classes"""
    baselines: bool = True
    """measure raw pixels and the untrained network, too"""
    prefixes: list[Annotated[int, Field(ge=1)]] = []
    """lengths: the end of the run also measures the first so many numbers of the embedding, in evaluation.json's
    `prefixes` and in the report; `dml eval RUN --prefix 32 --prefix 64` measures them later"""

    def component(self) -> dict[str, Any]:
        """Return the evaluator's table in the registry's form."""
        return {"name": self.name, **(self.model_extra or {})}


class Validation(Table):
    """``[validation]``: training classes that are held out, and measured during training in place of the test split."""

    class_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """hold out this fraction, drawn at random"""
    fold: Annotated[int, Field(ge=0)] | None = None
    """hold out this one, from 0, of `folds` parts in the order of the classes"""
    folds: Annotated[int, Field(ge=2)] | None = None
    """number of equal parts"""
    on_test: bool = False
    """the test split itself selects the weights, as in many published tables; its metrics then overestimate
    those of new classes"""
    metric: str = "map@r"
    """the run ends with the weights that were best by this metric"""
    patience: Annotated[int, Field(ge=0)] = 0
    """stop after this many evaluations without improvement; 0: never"""

    @property
    def holds_out(self) -> bool:
        """Whether classes are held out."""
        return self.class_fraction > 0 or self.folds is not None

    @property
    def selects(self) -> bool:
        """Whether evaluations during training select the weights."""
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
                ("class_fraction", self.class_fraction),
                ("folds", self.folds),
                ("on_test", self.on_test and "true"),
            )
            if value
        ]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} are given; expected at most one of them")
        return self


def _default_loggers() -> list[dict[str, Any]]:
    known = ["jsonl", *(["tensorboard"] if importlib.util.find_spec("tensorboard") else [])]
    return [{"name": name} for name in known]


class Logging(Table):
    """``[logging]``: where values are sent, and how often they are read from the device."""

    every: Annotated[int, Field(ge=1)] = 10
    """steps between two reads of values from the device"""
    loggers: list[dict[str, Any]] = Field(default_factory=_default_loggers)
    """tables of loggers; default: `{name = "jsonl"}`, and `{name = "tensorboard"}` if installed"""


class Recipe(Table):
    """A complete recipe. `dataset`, `backbone`, `sampler` and `loss` are the registry's tables."""

    training: Training
    dataset: dict[str, Any]
    backbone: dict[str, Any]
    sampler: dict[str, Any]
    loss: dict[str, Any]
    embedding: Embedding = Embedding()
    initialisation: Initialisation = Initialisation()
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
            way = "class_fraction" if table.class_fraction else "folds" if table.folds else "on_test"
            raise ValueError(f"validation.{way} is given; expected evaluation.every above 0, too")
        if table.patience and not table.selects:
            raise ValueError("validation.patience is given; expected validation.class_fraction above 0, too")
        if not self.evaluation.test and not table.holds_out:
            raise ValueError(
                "evaluation.test is false and no classes are held out, so nothing would be measured; "
                "expected validation.class_fraction above 0, or validation.fold and validation.folds"
            )
        return self

    @model_validator(mode="after")
    def _initialised_as_said(self) -> Recipe:
        known, chosen = self._backbone_levels(), self.embedding.levels
        if unknown := [name for name in chosen if name not in known]:
            raise ValueError(
                f"embedding.levels names {', '.join(map(repr, unknown))}; expected some of backbone.levels, "
                f"{', '.join(known) or 'of which there are none'}"
            )
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"embedding.levels is {chosen!r}; expected each level once")
        table = self.initialisation
        if table.class_weights == "class-means" and chosen:
            raise ValueError(
                "initialisation.class_weights is 'class-means'; expected no embedding.levels then"
            )
        if table.adapt_batch_norm and self.training.freeze_batch_norm:
            raise ValueError(
                "initialisation.adapt_batch_norm is given and training.freeze_batch_norm is true; expected one of them"
            )
        return self

    def evaluated_levels(self) -> list[int] | None:
        """Return the indices of the backbone's levels that the embedding consists of; None for all."""
        known = self._backbone_levels()
        return [known.index(name) for name in self.embedding.levels] or None

    def _backbone_levels(self) -> list[Any]:
        """Return the backbone's levels; none if they are no list, which the registry's check reports."""
        levels = self.backbone.get("levels")
        return levels if isinstance(levels, list) else []

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe in TOML's types, without keys that are None."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """Return the recipe as TOML, which `dml_train.load_recipe` reads again."""
        return tomli_w.dumps(self.to_dict())


def differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[str]:
    """List the differences of two recipes: ``loss.scale: 64.0 there, 32.0 here``, one line a key."""
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        there, here = old.get(key), new.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            found += differences(there, here, f"{path}{key}.")
        elif there != here:
            found.append(f"{path}{key}: {there!r} there, {here!r} here")
    return found


def describe_keys() -> str:
    """Return the recipe's own tables with their keys, defaults and descriptions, as Markdown."""
    text = ""
    for name, field in Recipe.model_fields.items():
        table = field.annotation
        if isinstance(table, type) and issubclass(table, Table):
            text += f"\n### `[{name}]`\n\n| key | default | what it sets |\n|---|---|---|\n"
            for key, option in table.model_fields.items():
                value = option.default
                written = isinstance(
                    value, bool | int | float | str | list | tuple
                )  # TOML's and JSON's are the same
                default = f"`{json.dumps(value)}`" if written else ""
                text += f"| `{key}` | {default} | {' '.join((option.description or '').split())} |\n"
    return text
