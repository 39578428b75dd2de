"""The tables and keys of a recipe, and the differences between recipes."""

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
LONGEST = (
    2**53
)  # steps or epochs, so that positions in a run are exact as floats, and products are finite
Period = Annotated[float, Field(ge=0, le=LONGEST)]
Size = Annotated[int, Field(ge=1)]
Unit = Literal["step", "epoch"]

# Former keys of evaluators, and the metrics to use instead.
OLD_METRIC_KEYS = {
    "recall_at": "recall@K",
    "precision_at": "precision@K",
    "average_precision_at": "map@K",
    "ndcg_at": "ndcg@K",
    "recall_share_at": "ir_recall@K",
    "reciprocal_rank_at": "mrr@K",
    "average_precision": "map",
    "nmi": "nmi",
    "nmi_average": "nmi_max",
}


class Table(BaseModel):
    """A table of a recipe, which must not have unknown keys or values of a wrong type.

    The text below a key documents the key in `dml recipes --keys` and
    docs/reference/recipe-tables.md.
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
    """seed for all random choices"""
    steps: Annotated[int, Field(ge=1, le=LONGEST)] | None = None
    """length of the run; or give `epochs`"""
    epochs: Annotated[float, Field(gt=0, le=LONGEST)] | None = None
    """length of the run; or give `steps`"""
    device: str = "auto"
    """`"auto"`, `"cpu"`, `"mps"`, `"cuda"` or `"cuda:0"`"""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """floating-point type for autocast"""
    gradient_clip: Positive | None = None
    """clip the gradient to this norm"""
    workers: Annotated[int, Field(ge=0, le=MOST_PROCESSES)] = 0
    """number of processes that load images; 0 loads in the main process"""
    channels_last: bool = False
    """use `torch.channels_last`"""
    deterministic: bool = False
    """use `torch.use_deterministic_algorithms`"""
    freeze_batch_norm: bool = False
    """don't train the backbone's batch norms or update their statistics"""
    trained_layers: Annotated[int, Field(ge=0)] | None = None
    """train only the last N layers of the backbone; the other layers keep weights and batch-norm
    statistics, and are not given to the optimizer"""
    sync_batch_norm: bool = False
    """share batch-norm statistics over ranks"""
    views: Annotated[int, Field(ge=1, le=64)] = 1
    """number of different augmentations of each image that the sampler draws; the batch is larger
    by this factor
    """
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    """number of images per forward pass, to save memory; the gradient doesn't change"""
    compile: bool = False
    """use `torch.compile`"""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """decay of the weights' moving average (EMA); if set, the average is evaluated and saved"""
    timeout: Annotated[float, Field(gt=0, le=1e9)] = 600.0
    """seconds after which a rank stops waiting for the others"""

    @model_validator(mode="after")
    def _check_length(self) -> Training:
        if (self.steps is None) == (self.epochs is None):
            given = (
                "neither"
                if self.steps is None
                else f"steps = {self.steps} and epochs = {self.epochs}"
            )
            raise ValueError(f"{given} given; expected exactly one of 'steps' and 'epochs'")
        return self


def _variant(value: object) -> str:
    return _LIST if isinstance(value, list) else _SCALAR


# Pydantic chooses the variant by the tag, so that it reports only errors of this variant. Locations
# contain the tag.
VARIANT_TAGS = _SCALAR, _LIST = "(scalar)", "(list)"
T = TypeVar("T")
ScalarOrList = Annotated[
    Annotated[T, Tag(_SCALAR)] | Annotated[list[T], Tag(_LIST)], Discriminator(_variant)
]


class Level(NamedTuple):
    """The head of a level of the backbone."""

    dim: int
    pooling: Pooling
    weight: float


class Embedding(Table):
    """``[embedding]``: the head. If the backbone has several levels, use one value for all levels
    or a list.
    """

    dim: ScalarOrList[Size] = 512
    """dimension of the embedding, per level"""
    pooling: ScalarOrList[Pooling] = "average"
    """`"average"`, `"max"`, `"both"` (the sum) or `"gem"` (generalised mean, learned power)"""
    layer_norm: bool = True
    """use parameter-free layer norm before the linear layer"""
    batch_norm: bool = False
    """use parameter-free batch norm after the linear layer"""
    bias: bool = True
    """use a bias in the linear layer"""
    linear: bool = True
    """use a linear layer; if `false`, the embedding is the pooled features, and `dim` must be the
    number of features
    """
    levels: list[str] = []
    """use only these levels from `backbone.levels` in the embedding; all levels train"""
    level_weight: ScalarOrList[NotNegative] = 1.0
    """weight of the loss of a level"""

    def of_levels(self, count: int) -> list[Level]:
        """Expand the table to `count` levels.

        Raise an `InvalidOption` if a list doesn't have `count` values, or a weight is given for a
        single level.
        """
        given = {"dim": self.dim, "pooling": self.pooling, "level_weight": self.level_weight}
        spread: dict[str, list[Any]] = {}
        for name, value in given.items():
            spread[name] = value if isinstance(value, list) else [value] * count
            if len(spread[name]) != count:
                raise InvalidOption(
                    f"embedding.{name} is {value!r}; expected one value for all, or a list of "
                    f"{count}: the backbone has {count} {'level' if count == 1 else 'levels'} (see "
                    "backbone.levels)"
                )
        if count == 1 and spread["level_weight"] != [1.0]:
            raise InvalidOption(
                f"embedding.level_weight is {self.level_weight!r}, but the backbone has only one "
                "level; omit it, or name more levels in backbone.levels"
            )
        return [Level(*values) for values in zip(*spread.values(), strict=True)]


class Initialisation(Table):
    """``[initialisation]``: preparations before the first step of a new run."""

    class_weights: Literal["default", "uniform-by-classes", "class-means"] = "default"
    """`"default"`: drawn by the loss; `"uniform-by-classes"`: drawn uniformly from ±1/√C, for C
    classes; `"class-means"`: the mean embedding of the class's training images"""
    adapt_batch_norm: Period = 0.0
    """epochs of forward passes that only update batch-norm statistics"""


class LrMultipliers(Table):
    """``optimizer.lr_multipliers``: factors to multiply the learning rate of each part by."""

    backbone: NotNegative = 1.0
    head: NotNegative = 1.0
    loss: NotNegative = 1.0


class Optimizer(Table):
    """``[optimizer]``: the algorithm and hyper-parameters."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    """`"adamw"`, `"adam"` (adds the weight decay to the gradient) or `"sgd"`"""
    lr: NotNegative = 0.001
    """learning rate"""
    weight_decay: NotNegative = 0.0001
    """weight decay, used for parameters with 2 or more dimensions"""
    lr_multipliers: LrMultipliers = LrMultipliers()
    """factors for `backbone`, `head` and `loss`, to multiply `lr` by"""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """learning rate of a backbone layer divided by the next layer's; the last layer has the
    backbone's rate
    """
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """momentum, for SGD"""
    nesterov: bool = False
    """use Nesterov momentum, for SGD"""
    betas: tuple[float, float] = (0.9, 0.999)
    """decay rates of the moments, for AdamW and Adam"""
    eps: Positive = 1e-08
    """epsilon in the denominator, for AdamW and Adam"""

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value  # tuples aren't supported in TOML


class Checkpoints(Table):
    """``[checkpoints]``: when to save checkpoints, and how many to keep."""

    every: Period = 1.0
    """interval between checkpoints; if 0, save only when the run ends"""
    unit: Unit = "epoch"
    """unit of `every`: `"epoch"` or `"step"`"""
    keep: Annotated[int, Field(ge=1)] = 2
    """number of newest checkpoints to keep"""


class Evaluation(Table):
    """``[evaluation]``: the evaluator, its options, and the interval during training."""

    model_config = ConfigDict(extra="allow")

    name: str = "exact"
    """evaluator; keys that aren't listed here are options of the evaluator"""
    every: Period = 0.0
    """interval between evaluations during training; if 0, evaluate only when the run ends"""
    unit: Unit = "epoch"
    """unit of `every`: `"epoch"` or `"step"`"""
    test: bool = True
    """use the test split; if `false`, a finished run is evaluated on the held-out classes"""
    baselines: bool = True
    """also evaluate raw pixels and the untrained network"""
    prefixes: list[Annotated[int, Field(ge=1)]] = []
    """numbers of leading dimensions to evaluate separately when the run ends, for `prefixes` in
    evaluation.json and the report; use `dml eval RUN --prefix 32 --prefix 64` to evaluate prefixes
    later"""

    def component(self) -> dict[str, Any]:
        """Return the evaluator's table in the registry's form."""
        return {"name": self.name, **(self.model_extra or {})}


class Validation(Table):
    """``[validation]``: training classes to hold out and to evaluate during training instead of the
    test split.
    """

    class_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """fraction of the training classes to hold out, drawn randomly"""
    fold: Annotated[int, Field(ge=0)] | None = None
    """index of the fold to hold out, from 0 to `folds` - 1"""
    folds: Annotated[int, Field(ge=2)] | None = None
    """number of folds; a fold consists of consecutive classes"""
    on_test: bool = False
    """select weights on the test split, as is common in published tables; metrics then overestimate
    the quality on new classes"""
    metric: str = "map@r"
    """metric to select weights by; the run ends with the best weights"""
    patience: Annotated[int, Field(ge=0)] = 0
    """stop after this number of evaluations that don't improve `metric`; 0 disables"""

    @property
    def holds_out(self) -> bool:
        """Whether classes are held out."""
        return self.class_fraction > 0 or self.folds is not None

    @property
    def selects(self) -> bool:
        """Whether evaluations during training select the weights."""
        return self.holds_out or self.on_test

    @model_validator(mode="after")
    def _check_choice(self) -> Validation:
        if (self.fold is None) != (self.folds is None):
            given = "fold" if self.folds is None else "folds"
            raise ValueError(
                f"only {given} = {getattr(self, given)} is given; expected both fold and folds"
            )
        if self.fold is not None and self.folds is not None and self.fold >= self.folds:
            raise ValueError(
                f"fold = {self.fold} of folds = {self.folds}; expected 0 to {self.folds - 1}"
            )
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
            raise ValueError(f"{' and '.join(ways)} are given; expected only one of these")
        return self


def _default_loggers() -> list[dict[str, Any]]:
    known = ["jsonl", *(["tensorboard"] if importlib.util.find_spec("tensorboard") else [])]
    return [{"name": name} for name in known]


class Logging(Table):
    """``[logging]``: where to send values, and how often to read them from the device."""

    every: Annotated[int, Field(ge=1)] = 10
    """steps between reads of values from the device"""
    loggers: list[dict[str, Any]] = Field(default_factory=_default_loggers)
    """tables of loggers; default: `{name = "jsonl"}`, and `{name = "tensorboard"}` if installed"""


class Recipe(Table):
    """A complete recipe. In `dataset`, `backbone`, `sampler` and `loss`, `name` selects a
    registered component.
    """

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
    def _check_validation(self) -> Recipe:
        table = self.validation
        if table.selects and not self.evaluation.every:
            way = (
                "class_fraction" if table.class_fraction else "folds" if table.folds else "on_test"
            )
            raise ValueError(f"validation.{way} is given; expected evaluation.every above 0, too")
        if table.patience and not table.selects:
            raise ValueError(
                "validation.patience is given; expected class_fraction, folds or on_test, too"
            )
        if not self.evaluation.test and not table.holds_out:
            raise ValueError(
                "evaluation.test is false and no classes are held out, so metrics would not be "
                "measured; expected validation.class_fraction above 0, or validation.fold and "
                "validation.folds"
            )
        return self

    @model_validator(mode="after")
    def _check_levels_and_initialisation(self) -> Recipe:
        known, chosen = self._backbone_levels(), self.embedding.levels
        if unknown := [name for name in chosen if name not in known]:
            raise ValueError(
                f"embedding.levels names {', '.join(map(repr, unknown))}; expected names from "
                f"backbone.levels: {', '.join(known) or 'it is empty'}"
            )
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"embedding.levels is {chosen!r}; expected distinct levels")
        table = self.initialisation
        if table.class_weights == "class-means" and chosen:
            raise ValueError(
                "initialisation.class_weights is 'class-means' and embedding.levels is given; "
                "use only one of these"
            )
        if table.adapt_batch_norm and self.training.freeze_batch_norm:
            raise ValueError(
                "initialisation.adapt_batch_norm is given and training.freeze_batch_norm is true; "
                "use only one of these"
            )
        return self

    def evaluated_levels(self) -> list[int] | None:
        """Return the indices of the backbone's levels that the embedding uses; None if it uses
        all.
        """
        known = self._backbone_levels()
        return [known.index(name) for name in self.embedding.levels] or None

    def _backbone_levels(self) -> list[Any]:
        """Return the backbone's levels; empty if `levels` isn't a list, which the registry
        reports.
        """
        levels = self.backbone.get("levels")
        return levels if isinstance(levels, list) else []

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe in TOML types, omitting keys that are None."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """Return the recipe as TOML, which `dml_train.load_recipe` reads again."""
        return tomli_w.dumps(self.to_dict())


def differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[str]:
    """List the differences between recipes, with a line per key:
    ``loss.scale: 64.0 there, 32.0 here``.
    """
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        there, here = old.get(key), new.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            found += differences(there, here, f"{path}{key}.")
        elif there != here:
            found.append(f"{path}{key}: {there!r} there, {here!r} here")
    return found


def list_tables() -> dict[str, type[Table]]:
    """List the tables of a recipe by name, except the tables of components."""
    tables = {name: field.annotation for name, field in Recipe.model_fields.items()}
    return {name: t for name, t in tables.items() if isinstance(t, type) and issubclass(t, Table)}


def describe_keys() -> str:
    """Describe keys, defaults and meanings of all tables except components, as Markdown."""
    text = ""
    for name, table in list_tables().items():
        text += f"\n### `[{name}]`\n\n| key | default | description |\n|---|---|---|\n"
        for key, option in table.model_fields.items():
            value = option.default
            # TOML and JSON write these types identically.
            written = isinstance(value, bool | int | float | str | list | tuple)
            default = f"`{json.dumps(value)}`" if written else ""
            text += f"| `{key}` | {default} | {' '.join((option.description or '').split())} |\n"
    return text
