"""A recipe's tables, their keys, and the differences of two recipes."""

from __future__ import annotations

import importlib.util
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
Form = Literal["whole", "parts"]

# Keys under an earlier name, whose message gives the new one.
RENAMED = {
    "training.average": "training.ema_decay",
    "optimizer.backbone": "optimizer.lr_multipliers.backbone",
    "optimizer.head": "optimizer.lr_multipliers.head",
    "optimizer.loss": "optimizer.lr_multipliers.loss",
    "validation.classes": "validation.class_fraction",
}
# Earlier keys of evaluators, each with the metric that it asked for; @ stands before each K of a list.
OLD_METRIC_KEYS = {
    "recall_at": "recall@",
    "precision_at": "precision@",
    "average_precision_at": "map@",
    "ndcg_at": "ndcg@",
    "recall_share_at": "ir_recall@",
    "reciprocal_rank_at": "mrr@",
    "average_precision": "map",
    "nmi": "nmi",
    "nmi_average": "nmi_",
}


class Table(BaseModel):
    """A table of a recipe; unknown keys and values of another type are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class Training(Table):
    """``[training]``: length, device and arithmetic."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Annotated[int, Field(ge=1, le=LONGEST)] | None = None
    epochs: Annotated[float, Field(gt=0, le=LONGEST)] | None = None
    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    gradient_clip: Positive | None = None
    workers: Annotated[int, Field(ge=0, le=MOST_PROCESSES)] = 0
    channels_last: bool = False
    deterministic: bool = False
    freeze_batch_norm: bool = False
    trained_layers: Annotated[int, Field(ge=0)] | None = None  # of the backbone, the last ones; None: all
    sync_batch_norm: bool = False
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    compile: bool = False
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = (
        None  # of an average of the weights, then measured and saved
    )
    timeout: Annotated[float, Field(gt=0, le=1e9)] = 600.0  # seconds that a rank waits for another

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
    """``[embedding]``: the head. If the backbone gives several levels, a key has one value for all or a list.

    The embedding concatenates those of all levels, or of the backbone's `levels` that are named here; all of them
    train. `level_weight` multiplies each level's loss. Without `linear` the embedding is the pooled features.
    """

    dim: ScalarOrList[Size] = 512
    pooling: ScalarOrList[Pooling] = "average"
    layer_norm: bool = True
    batch_norm: bool = False
    bias: bool = True
    linear: bool = True
    levels: list[str] = []
    level_weight: ScalarOrList[NotNegative] = 1.0

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
    """``[initialisation]``: what precedes the first step.

    Class weights have the loss's own distribution, or are drawn uniformly from ±1/√(number of classes), or are the
    means of their classes' embeddings. Batch norms adapt their statistics over `adapt_batch_norm` epochs of forward
    passes that change no weight.
    """

    class_weights: Literal["default", "uniform-by-classes", "class-means"] = "default"
    adapt_batch_norm: Period = 0.0


class LrMultipliers(Table):
    """``optimizer.lr_multipliers``: factors of the learning rate of each part's parameters."""

    backbone: NotNegative = 1.0
    head: NotNegative = 1.0
    loss: NotNegative = 1.0


class Optimizer(Table):
    """``[optimizer]``: the algorithm and its hyper-parameters."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: NotNegative = 1e-3
    weight_decay: NotNegative = 1e-4
    lr_multipliers: LrMultipliers = LrMultipliers()
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # a layer's rate over that of the next layer
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Positive = 1e-8

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value  # TOML has arrays only


class Checkpoints(Table):
    """``[checkpoints]``: the interval between two (0: only one, at the end), how many are kept, and their form.

    In ``parts``, each rank writes its rows of sharded class weights; without any, the form is ``whole``.
    """

    every: Period = 1.0
    unit: Unit = "epoch"
    keep: Annotated[int, Field(ge=1)] = 2
    form: Form = "whole"


class Evaluation(Table):
    """``[evaluation]``: the evaluator, its options, and the interval during training (0: only at the end).

    If `test` is false, the test split stays unseen, and a finished run is measured on the held-out classes: for
    searches of settings. With `baselines`, raw pixels and the untrained network are measured on the test split, too.
    The end of the run also measures each of the `prefixes`, the first so many numbers of the embedding.
    """

    model_config = ConfigDict(extra="allow")

    name: str = "exact"
    every: Period = 0.0
    unit: Unit = "epoch"
    test: bool = True
    baselines: bool = True
    prefixes: list[Annotated[int, Field(ge=1)]] = []

    def component(self) -> dict[str, Any]:
        """Return the evaluator's table in the registry's form."""
        return {"name": self.name, **(self.model_extra or {})}


class Validation(Table):
    """``[validation]``: the training classes held out, and their use.

    Held out is a random `class_fraction` of them, or part number `fold` (from 0) of `folds` equal parts in the order
    of the split's classes. Each evaluation during training then measures these classes and not the test split. The
    run ends with the weights that were best by `metric`, early after `patience` evaluations without improvement
    (0: never). With `on_test` the test split itself selects the weights, as in many published tables; its metrics
    then overestimate those of new classes.
    """

    class_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    fold: Annotated[int, Field(ge=0)] | None = None
    folds: Annotated[int, Field(ge=2)] | None = None
    on_test: bool = False
    metric: str = "map@r"
    patience: Annotated[int, Field(ge=0)] = 0

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
    """``[logging]``: the loggers' tables, and the steps between two reads of values from the device.

    By default, TensorBoard logs where it's installed (the extra ``tensorboard``).
    """

    every: Annotated[int, Field(ge=1)] = 10
    loggers: list[dict[str, Any]] = Field(default_factory=_default_loggers)


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
