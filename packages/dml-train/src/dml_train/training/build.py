"""Build the parts of a run from a recipe: data, network, loss, optimizer, schedules, evaluator."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dml_core import (
    BatchSampler,
    Dataset,
    DmlError,
    Evaluator,
    InvalidOption,
    PeersEvaluator,
    Registry,
    RelatedDataset,
    Schedules,
    Split,
    nearest,
)
from dml_train.data.held_out_classes import hold_out, hold_out_fold
from dml_train.measure.embed import Network, align_labels, embed, items_of_rank, match_sides
from dml_train.measure.evaluate import Embedded, build_evaluator, check_prefixes
from dml_train.networks.model import (
    EmbeddingHead,
    EmbeddingModel,
    LevelledHead,
    LevelledLoss,
    freeze_early_layers,
    layer_scales,
    layers_of,
)
from dml_train.progress import stage
from dml_train.ranks.ranks import SINGLE_PROCESS, Ranks
from dml_train.recipe.tables import Embedding, Level, Recipe, Unit
from dml_train.seeds import INITIALISATION, derive, seed_torch
from dml_train.training.checks import (
    build_sampler,
    check_initialisation,
    check_matching,
    check_mining,
    check_sizes,
    describe_training,
)
from dml_train.training.optimizers import PartedOptimizer
from dml_train.training.scheduling import build_schedules, check_loss_schedules

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Experiment:
    """The parts of a run before the first step, built and checked."""

    recipe: Recipe
    device: torch.device
    dataset: Dataset
    train: Split  # the training split except the held-out classes
    validation: Split | None
    sampler: BatchSampler
    model: EmbeddingModel  # the model that trains
    average: AveragedModel | None  # the moving average of the model's weights
    loss: nn.Module
    optimizer: PartedOptimizer
    schedules: Schedules
    evaluator: Evaluator
    num_steps: int

    def steps(self, every: float, unit: Unit) -> int:
        """Convert a period to steps, at least 1; a period of 0 means never and stays 0."""
        return max(1, round(every * (len(self.sampler) if unit == "epoch" else 1))) if every else 0

    @property
    def precision(self) -> torch.dtype:
        """The floating-point type of the network's arithmetic."""
        return PRECISIONS[self.recipe.training.precision]

    @property
    def evaluated_model(self) -> EmbeddingModel:
        """The model that is evaluated and saved: the moving average, if used."""
        return self.model if self.average is None else cast("EmbeddingModel", self.average.module)

    def embed_test(
        self, console: Console, ranks: Ranks = SINGLE_PROCESS, network: Network | None = None
    ) -> Embedded:
        """Embed the test split, and the gallery if given; see `embed` for ranks and network."""
        test, gallery = self.dataset.test, self.dataset.gallery
        queries = self.embed(test, console, ranks, network)
        return Embedded(
            queries,
            test.labels,
            None if gallery is None else self.embed(gallery, console, ranks, network),
            None if gallery is None else align_labels(gallery, test),
            *match_sides(
                test,
                gallery,
                self.dataset.matches if isinstance(self.dataset, RelatedDataset) else None,
            ),
        )

    def embed_watched(self, console: Console, ranks: Ranks = SINGLE_PROCESS) -> Embedded:
        """Embed the split that periodic evaluations use: the held-out classes if any, otherwise the
        test split.
        """
        if self.validation is None:
            return self.embed_test(console, ranks)
        matches, _ = match_sides(self.validation)
        return Embedded(
            self.embed(self.validation, console, ranks), self.validation.labels, matches=matches
        )

    def embed(
        self,
        split: Split,
        console: Console,
        ranks: Ranks = SINGLE_PROCESS,
        network: Network | None = None,
    ) -> npt.NDArray[np.float32]:
        """Embed a split, (N, D) float32, with `network`; default: the evaluated model with the
        current weights.

        If the evaluator divides the work over ranks, all ranks receive all rows. Otherwise only the
        first rank does, and the other ranks receive (0, D).
        """
        part = self.embed_share(network or self.evaluated_model, split, console, ranks)
        if isinstance(self.evaluator, PeersEvaluator):
            return ranks.all_gather(part)
        return np.concatenate([part[:0], *ranks.gather_object(part)])

    def embed_share(
        self, network: Network, split: Split, console: Console, ranks: Ranks, title: str = "embed"
    ) -> npt.NDArray[np.float32]:
        """Embed this rank's share of a split with a network, (n, D) float32."""
        items = items_of_rank(len(split), ranks)
        with stage(console, title, len(items)) as show:
            return embed(
                network,
                split,
                device=self.device,
                precision=self.precision,
                workers=self.recipe.training.workers,
                items=items,
                progress=lambda done, _: show(done, ""),
            )


def build(
    recipe: Recipe,
    registry: Registry,
    ranks: Ranks = SINGLE_PROCESS,
    *,
    pretrained: bool = True,
    warn: bool = False,
) -> Experiment:
    """Build all parts of a recipe, identical on every rank. The weights depend only on the recipe's
    seed.

    See `build_model` for `pretrained`, and `build_dataset` for `warn`. Raise a `DmlError` if a
    component rejects an option, a schedule's path doesn't exist, or the device is missing.
    """
    training = recipe.training
    device = find_device(training.device, ranks.local_rank)
    dataset = build_dataset(recipe, registry, warn=warn)
    held = recipe.validation
    train, validation = (
        hold_out(dataset.train, held.class_fraction, training.seed)
        if held.fold is None or held.folds is None
        else hold_out_fold(dataset.train, held.fold, held.folds)
    )
    described = describe_training(dataset, train, recipe.dataset.get("train_fraction"))
    check_sizes(dataset, train, described, tests=recipe.evaluation.test)
    evaluator = build_evaluator(recipe, registry)
    check_matching(recipe, registry, dataset, validation)
    sampler = build_sampler(recipe.sampler, training.seed, registry, train, described)
    check_mining(recipe, sampler, evaluator)
    if (size := training.views * len(sampler.batch_at(0, 0))) % ranks.world_size:
        raise DmlError(
            f"a batch contains {size} images, which {ranks.world_size} ranks can't share equally; "
            f"choose a batch size that is a multiple of {ranks.world_size}, or a different number "
            "of ranks"
        )
    steps_per_epoch = len(sampler)
    num_steps = training.steps or max(1, math.ceil((training.epochs or 0) * steps_per_epoch))

    with _memory_errors_as_dml_errors():
        model = build_model(recipe, dataset.in_channels, registry, device, pretrained=pretrained)
    if training.sync_batch_norm and ranks.world_size > 1:
        if device.type != "cuda":
            raise DmlError(
                f"training.sync_batch_norm needs a GPU per rank, but the device is {device}. "
                "Use training.freeze_batch_norm, or a backbone without batch norm"
            )
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # in place, also in the head
    with _memory_errors_as_dml_errors():
        loss = build_loss(
            recipe, len(train.class_names), steps_per_epoch, model.head, registry, device
        )
    check_prefixes(recipe.evaluation.prefixes, model.head.embedding_dim)
    check_initialisation(recipe.initialisation, loss, len(train.class_names))
    scales = {}
    if (decay := recipe.optimizer.layer_decay) < 1.0:
        scales = layer_scales(layers_of(model.backbone, "optimizer.layer_decay"), decay)
    optimizer = PartedOptimizer(
        recipe.optimizer,
        {"backbone": model.backbone, "head": model.head, "loss": loss},
        model.frozen_parameters(),
        scales,
    )
    schedules = build_schedules(
        recipe.schedule,
        recipe.optimizer,
        num_steps,
        steps_per_epoch,
        {"optimizer": optimizer, "loss": loss, "model": model},
    )
    # This call expects tables of numbers, which `build_schedules` has checked.
    check_loss_schedules(recipe.schedule, recipe.loss, registry)
    if recipe.validation.selects:
        every = recipe.evaluation.every * (
            steps_per_epoch if recipe.evaluation.unit == "epoch" else 1
        )
        if round(every) > num_steps:
            raise InvalidOption(
                f"evaluation.every is {recipe.evaluation.every:g} {recipe.evaluation.unit}s, which "
                f"are {round(every)} steps, but the run has {num_steps}: no evaluation would "
                "select weights; expected a shorter interval"
            )
    average = None
    if training.ema_decay is not None:
        decay = get_ema_multi_avg_fn(training.ema_decay)  # type: ignore[no-untyped-call]
        average = AveragedModel(model, multi_avg_fn=decay, use_buffers=True)
    return Experiment(
        recipe=recipe,
        device=device,
        dataset=dataset,
        train=train,
        validation=validation,
        sampler=sampler,
        model=model,
        average=average,
        loss=loss,
        optimizer=optimizer,
        schedules=schedules,
        evaluator=evaluator,
        num_steps=num_steps,
    )


def build_dataset(recipe: Recipe, registry: Registry, *, warn: bool = False) -> Dataset:
    """Build the data set of a recipe; raise a `DmlError` if an option is invalid, or a file is
    missing or invalid.

    Set `warn` when a run starts, to log warnings such as the list of excluded images. Commands that
    use the run don't repeat the warnings.
    """
    logger = logging.getLogger("dml_train.data")
    level = logger.level
    logger.setLevel(level if warn else logging.ERROR)
    try:
        dataset: Dataset = registry.build(
            "datasets", recipe.dataset, {"seed": recipe.training.seed}
        )
    finally:
        logger.setLevel(level)
    return dataset


def build_model(
    recipe: Recipe,
    in_channels: int,
    registry: Registry,
    device: torch.device,
    *,
    pretrained: bool = True,
) -> EmbeddingModel:
    """Build the untrained network; the weights depend only on the recipe's seed.

    Set ``pretrained=False`` to not load pretrained weights, for example if a checkpoint will
    replace the weights.
    """
    seed_torch(device, recipe.training.seed, INITIALISATION, 0)
    backbone = registry.build(
        "backbones", recipe.backbone, {"in_channels": in_channels, "pretrained": pretrained}
    )
    if recipe.training.trained_layers is not None:
        freeze_early_layers(backbone, recipe.training.trained_layers)
    embedding = recipe.embedding
    several = not isinstance(backbone.num_features, int)
    widths: Sequence[int] = backbone.num_features if several else [backbone.num_features]
    levels = embedding.of_levels(len(widths))
    heads = [
        build_head(width, level, embedding) for width, level in zip(widths, levels, strict=True)
    ]
    head = LevelledHead(heads, recipe.evaluated_levels()) if several else heads[0]
    model = EmbeddingModel(backbone, head).to(device)
    if recipe.training.channels_last:
        model = model.to(memory_format=torch.channels_last)
    model.batch_norm_trains = int(not recipe.training.freeze_batch_norm)
    return model


def build_head(num_features: int, level: Level, embedding: Embedding) -> EmbeddingHead:
    """Build the head of a level.

    Raise an `InvalidOption` if a linear layer isn't used and the dimension differs from the number
    of features.
    """
    if not embedding.linear and level.dim != num_features:
        raise InvalidOption(
            f"embedding.linear is false and embedding.dim is {level.dim}; expected {num_features}: "
            "without a linear layer, the embedding is the backbone's features"
        )
    return EmbeddingHead(
        num_features,
        level.dim,
        level.pooling,
        embedding.layer_norm,
        embedding.batch_norm,
        embedding.bias,
        embedding.linear,
    )


def build_loss(
    recipe: Recipe,
    num_classes: int,
    steps_per_epoch: int,
    head: EmbeddingHead | LevelledHead,
    registry: Registry,
    device: torch.device,
) -> nn.Module:
    """Build the loss, or a loss per level; the weights depend only on the recipe's seed."""
    seed_torch(device, recipe.training.seed, INITIALISATION, 1)
    context = {
        "num_classes": num_classes,
        "steps_per_epoch": steps_per_epoch,
        "seed": derive(recipe.training.seed, INITIALISATION, 2) >> 2,
    }
    dims = head.dims if isinstance(head, LevelledHead) else [head.embedding_dim]
    losses = [
        registry.build("losses", recipe.loss, {**context, "embedding_dim": dim}) for dim in dims
    ]
    if not isinstance(losses[0], nn.Module):
        raise DmlError(
            f"the loss {recipe.loss['name']!r} is a {type(losses[0]).__name__}; expected an "
            "nn.Module"
        )
    loss: nn.Module = losses[0]
    if isinstance(head, LevelledHead):
        weights = [level.weight for level in recipe.embedding.of_levels(len(dims))]
        loss = LevelledLoss(losses, dims, weights)
    return loss.to(device).train()


@contextmanager
def _memory_errors_as_dml_errors() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        # torch doesn't define an exception for a lack of CPU memory, or for sizes above 64 bits (a
        # TypeError).
        if isinstance(error, MemoryError) or re.search(
            "alloc|out of memory|overflow", str(error), re.IGNORECASE
        ):
            line = str(error).splitlines()[0]
            raise DmlError(
                f"the network or the loss doesn't fit into memory ({line}); reduce embedding.dim, "
                "the number of classes, or the memory of the loss"
            ) from error
        raise


def find_device(name: str, local_rank: int = 0) -> torch.device:
    """Find the device with this name; raise a `DmlError` if this machine doesn't have it.

    ``"auto"`` is a GPU if available. Ranks on a machine use different GPUs.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:(0|[1-9][0-9]?))?", name):
        known = ("auto", "cpu", "cuda", "cuda:0", "mps")
        raise DmlError(
            f"training.device is {name!r}{nearest(name, known)} expected one of: {', '.join(known)}"
        )
    device = torch.device(name)
    count = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }[device.type]
    if name == "cuda" and count:
        if local_rank >= count:
            raise DmlError(
                f"rank {local_rank} of this machine can't get a GPU: there are {count}; start at "
                f"most {count} ranks"
            )
        return torch.device("cuda", local_rank)
    if (device.index or 0) >= count:
        there = f"this machine has {count}" if count else "this machine has none"
        raise DmlError(
            f"training.device is {name!r}; {there}. Use training.device = 'auto' or 'cpu'"
        )
    return device
