"""The training loop: load, step, log, evaluate, save.

Everything that a step draws at random is a function of the run's seed and the step (`dml_train.seeds`), and so
are batches and schedules. So weights, optimizer, loss and scaler are all that a checkpoint has to hold for a
resumed run to end with the bits of one that was never stopped.

Shapes: `B` rows of the global batch, `R` rows of this rank's part of it, `D` embedding dimension.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from dml_core import DmlError, Registry, RunLogger
from dml_core.components import Run
from dml_train.data.batches import Batch, StepBatches, load_ahead
from dml_train.files import write_json
from dml_train.measure.evaluate import Embedded, Measurement, evaluate_on_ranks, flatten_metrics
from dml_train.measure.per_query import save_per_query
from dml_train.processes.stopping import Interrupted, Interruption
from dml_train.progress import Show, stage
from dml_train.ranks.ranks import SINGLE_PROCESS, Agreement, Ranks
from dml_train.ranks.sharding import Shards
from dml_train.run_folder import RunFolder
from dml_train.seeds import LOSS, seed_torch
from dml_train.training import checkpoint
from dml_train.training.best import Best
from dml_train.training.build import Experiment
from dml_train.training.checkpoint import Checkpoint
from dml_train.training.loggers import CLOCK
from dml_train.training.replica import Network


class Trainer:
    """One run, from where its folder stands to its end.

    Args:
        experiment: what is trained, with what.
        folder: where everything goes; the run goes on from its newest whole checkpoint.
        registry: where loggers and observers are found.
        console: where progress is shown.
        ranks: those that train together.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        registry: Registry,
        console: Console,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        self.experiment, self.folder, self.console, self.ranks = experiment, folder, console, ranks
        recipe, device = experiment.recipe, experiment.device
        self.training = recipe.training
        self.log_every = recipe.logging.every
        self.evaluate_every = experiment.steps(recipe.evaluation.every, recipe.evaluation.unit)
        self.save_every = experiment.steps(recipe.checkpoints.every, recipe.checkpoints.unit)
        self.batches = StepBatches(
            experiment.train, experiment.sampler, self.training.seed, ranks.rank, ranks.world_size
        )
        self.memory_format = torch.channels_last if self.training.channels_last else torch.preserve_format
        self.network = Network(experiment, ranks)
        self.shards = Shards(experiment.loss, experiment.optimizer.torch, ranks)
        self.scaler = self.shards.scaler(device, enabled=self.training.precision == "float16")
        self.watched = (
            "evaluation" if experiment.validation is None else "validation"
        )  # what is measured meanwhile
        self.selects = recipe.validation.selects
        self.best = Best(recipe.validation.metric, recipe.validation.patience)
        self.begun = self.done = self.restore()  # optimizer steps, at this start and now
        self.unread: list[tuple[int, dict[str, Tensor], dict[str, float]]] = []  # values still on the device
        self.clock, self.images_seen = time.perf_counter(), 0
        self.run = Run(folder.path, recipe.to_dict(), experiment.num_steps, ranks.rank, ranks.world_size)
        self.hook = registry.plugins.manager.hook
        context = {"directory": folder.path, "start_step": self.done}
        tables = recipe.logging.loggers if ranks.is_first else []
        self.loggers: list[RunLogger] = [registry.build("loggers", table, context) for table in tables]

    def train(self) -> None:
        """Run to the end, and tell those who watch how it ended."""
        self.hook.dml_run_start(run=self.run)
        error: BaseException | None = None
        try:
            with stage(self.console, "train", self.experiment.num_steps, self.done) as show:
                self.take_steps(show)
            self.finish()
        except BaseException as ending:
            error = ending
            raise
        finally:
            for logger in self.loggers:
                logger.close()
            self.hook.dml_run_end(run=self.run, step=self.done, error=error)

    def take_steps(self, show: Show) -> None:
        """The loop: load, step, log, evaluate, save."""
        places = range(self.done, 0 if self.best.exhausted else self.experiment.num_steps)
        pin = self.experiment.device.type == "cuda"
        self.experiment.model.train()
        agree = Agreement(self.ranks)
        with Interruption(final=self.ranks.world_size == 1) as interruption:
            for batch in load_ahead(self.batches, places, self.training.workers, pin=pin):
                self.step(batch)
                stop_signal = agree(interruption.asked)
                ends = self.done == self.experiment.num_steps
                # What the end measures anyway needn't be measured now, unless the measuring chooses the weights.
                evaluates = due(self.done, self.evaluate_every) and (self.selects or not ends)
                saves = ends or due(self.done, self.save_every) or stop_signal > 0
                if saves or evaluates or due(self.done, self.log_every):
                    self.log(show)
                if evaluates and self.watch():
                    saves = True
                if saves or self.best.exhausted:
                    self.save()
                if self.best.exhausted:
                    break
                if stop_signal:
                    raise Interrupted(stop_signal, self.done, self.folder.path)
            # The last step is saved, too, and what comes after it can take longer than anybody waits who asks to stop.
            if stop_signal := max(agree(interruption.asked), agree(0)):
                raise Interrupted(stop_signal, self.done, self.folder.path)

    def step(self, batch: Batch) -> None:
        """One optimizer step on one global batch."""
        experiment, device, optimizer = self.experiment, self.experiment.device, self.experiment.optimizer
        scheduled = experiment.schedules.apply(batch.step)
        optimizer.write_groups()
        images_R = batch.images.to(device, non_blocking=True, memory_format=self.memory_format)
        labels_B = batch.labels.to(device, non_blocking=True)

        embeddings_RD = self.network.embed(images_R, batch.step)
        seed_torch(device, self.training.seed, LOSS, batch.step)
        loss = self.loss(self.ranks.all_gather_with_gradient(embeddings_RD), labels_B, scheduled)
        _check_scalar(loss, experiment.loss)
        self.scaler.scale(loss).backward()
        self.network.finish_backward()
        if batch.step == self.begun:
            optimizer.check_gradients()
        self.ranks.average_gradients(self.shards.shared(experiment.loss.parameters()))

        values = {"loss": loss.detach()}
        self.scaler.unscale_(optimizer.torch)
        if self.training.gradient_clip is not None:
            values["gradient_norm"] = self.shards.clip(optimizer.parameters(), self.training.gradient_clip)
        self.scaler.step(optimizer.torch)
        self.scaler.update()
        optimizer.torch.zero_grad(set_to_none=True)
        if experiment.average is not None:
            experiment.average.update_parameters(experiment.model)

        self.done = batch.step + 1
        self.images_seen += len(labels_B)
        self.unread.append((self.done, values, {"optimizer.lr": optimizer.lr, **scheduled}))

    def loss(self, embeddings_BD: Tensor, labels_B: Tensor, scheduled: Mapping[str, float]) -> Any:
        """What the loss returns for the global batch.

        Raises:
            DmlError: if the loss can't be computed with what the schedules made of its numbers, which a loss itself
                checks only when it is made.
        """
        try:
            return self.experiment.loss(embeddings_BD, labels_B)
        except (ArithmeticError, ValueError) as error:
            moved = [f"{path} = {value:g}" for path, value in scheduled.items() if path.startswith("loss.")]
            if not moved:
                raise
            raise DmlError(
                f"step {self.done + 1} can't be taken: {type(error).__name__}: {error}. The schedules had set "
                f"{', '.join(moved)}; {self.kept()}. Mend the schedule, then go on with --resume --force"
            ) from error

    def log(self, show: Show) -> None:
        """Pass on what the steps since the last time left on the device, read all at once.

        Raises:
            DmlError: if a loss isn't finite.
        """
        rows = torch.stack(
            [torch.stack([v.float() for v in values.values()]) for _, values, _ in self.unread]
        )
        numbers = rows.tolist()
        now = time.perf_counter()
        speed = self.images_seen / (now - self.clock)
        for (step, measured, scheduled), row in zip(self.unread, numbers, strict=True):
            values = {**dict(zip(measured, row, strict=True)), **scheduled}
            if not math.isfinite(values["loss"]):
                raise self.divergence(step, values)
            clock = {f"{CLOCK}images_per_second": speed} if step == self.done else {}
            self.record(step, {**values, **clock})
            self.hook.dml_step_end(run=self.run, step=step, values=values)
        show(self.done, f"loss {values['loss']:.4g}  lr {values['optimizer.lr']:.3g}  {speed:.0f} images/s")
        self.unread.clear()
        self.clock, self.images_seen = now, 0

    def watch(self) -> bool:
        """Measure what is watched during training; whether it chooses the weights and was the best so far."""
        measured = self.evaluate(self.experiment.embed_watched(self.console, self.ranks), self.watched)
        return self.selects and self.best.see(self.done, flatten_metrics(measured.metrics))

    def evaluate(self, embedded: Embedded, name: str) -> Measurement:
        """Measure an embedding and pass its metrics to loggers and hooks."""
        measured = evaluate_on_ranks(self.ranks, self.experiment.evaluator, embedded)
        flat = flatten_metrics(measured.metrics)
        self.record(self.done, {f"{name}/{key}": value for key, value in flat.items()})
        result = {**measured.metrics, "split": split_of(name)}
        self.hook.dml_evaluation_end(run=self.run, step=self.done, result=result)
        self.clock, self.images_seen = time.perf_counter(), 0
        return measured

    def save(self) -> None:
        """Write a checkpoint, and drop those that needn't be kept."""
        experiment = self.experiment
        loss, optimizer = self.shards.whole()

        def write() -> None:
            state: dict[str, Any] = {
                "loss": loss,
                "optimizer": optimizer,
                "scaler": self.scaler.state_dict(),
                "best": self.best.state_dict(),
            }
            if experiment.average is not None:
                state |= {"model": experiment.model.state_dict(), "averaged": experiment.average.n_averaged}
            written = checkpoint.write(
                self.folder.checkpoints,
                self.done,
                experiment.measured.state_dict(),
                state,
                untrained={*_untrained(experiment.model), *_untrained(experiment.loss)},
            )
            checkpoint.prune(self.folder.checkpoints, experiment.recipe.checkpoints.keep, {self.best.step})
            self.hook.dml_checkpoint_saved(run=self.run, step=self.done, path=written.path)

        self.ranks.run_on_first(write)
        self.clock, self.images_seen = time.perf_counter(), 0

    def restore(self) -> int:
        """Go to where the newest whole checkpoint stands; the number of steps done there, 0 without one."""

        def find() -> Checkpoint | None:
            for path, fault in checkpoint.corrupt(self.folder.checkpoints).items():
                self.console.print(f"{path} is damaged ({fault}) and is not used", markup=False)
            return checkpoint.newest_intact(self.folder.checkpoints)

        newest = self.ranks.run_on_first(find)
        if newest is None:
            return 0
        experiment, state = self.experiment, newest.state(mapped=bool(self.shards))
        weights = newest.weights()
        # A run that is forced to go on with an average begins it here; one without goes on from what was averaged.
        experiment.model.load_state_dict(state.get("model", weights))
        if experiment.average is not None:
            experiment.average.module.load_state_dict(weights)
            experiment.average.n_averaged.fill_(state.get("averaged", 0))
        self.shards.take(state["loss"], state["optimizer"])
        if state["scaler"]:  # empty where nothing was scaled: then this one begins anew
            self.scaler.load_state_dict(state["scaler"])
        self.best.load_state_dict(state["best"])
        return newest.step

    def finish(self) -> None:
        """Embed the test split, measure it, and write both into the folder; `evaluation.json` comes last.

        With classes held out, by the weights that were best for them; without `evaluation.test`, they themselves
        are measured, and no embedding is left.
        """
        if self.best.step not in (0, self.done):
            best = self.ranks.run_on_first(
                lambda: checkpoint.of_step(self.folder.checkpoints, self.best.step)
            )
            self.experiment.measured.load_state_dict(best.weights())
        recipe = self.experiment.recipe
        if recipe.evaluation.test:
            embedded = self.experiment.embed_test(self.console, self.ranks)
            self.ranks.run_on_first(lambda: embedded.write(self.folder))
            measured = self.evaluate(embedded, "evaluation")
        else:
            measured = self.evaluate(self.experiment.embed_watched(self.console, self.ranks), self.watched)
        result = {
            **measured.metrics,
            "step": self.best.step or self.done,
            "split": "test" if recipe.evaluation.test else "validation",
            "selected_on": split_of(self.watched) if self.best.step else None,
            "evaluator": recipe.evaluation.name,
        }

        def write() -> None:
            if recipe.evaluation.test and measured.evaluation is not None:
                save_per_query(self.folder, recipe, result, measured.evaluation)
            write_json(self.folder.evaluation, result)

        self.ranks.run_on_first(write)

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Give values to every logger."""
        for logger in self.loggers:
            logger.log(step, values)

    def divergence(self, step: int, values: Mapping[str, float]) -> DmlError:
        """What to say of a loss that isn't finite."""
        return DmlError(
            f"the loss of step {step} is {values['loss']} (optimizer.lr {values['optimizer.lr']:.3g}); "
            f"{self.kept()}. Try a lower optimizer.lr, a warmup in its schedule, training.gradient_clip = 1.0, "
            f"or training.precision = 'float32'. The batch was items {self.batches.indices(step - 1).tolist()}"
        )

    def kept(self) -> str:
        """Which checkpoint a run that ends by a fault can go on from."""
        newest = checkpoint.newest_intact(self.folder.checkpoints)
        return f"the checkpoint of step {newest.step} is whole" if newest else "there is no checkpoint yet"


def split_of(name: str) -> str:
    """The split whose figures are logged under this name."""
    return "test" if name == "evaluation" else name


def due(done: int, every: int) -> bool:
    """Whether something that comes every so many steps (0: never) comes now."""
    return every > 0 and done % every == 0


def _untrained(module: torch.nn.Module) -> Iterator[str]:
    """The names of what no optimizer moves."""
    yield from (name for name, _ in module.named_buffers())
    yield from (name for name, parameter in module.named_parameters() if not parameter.requires_grad)


def _check_scalar(value: object, loss: torch.nn.Module) -> None:
    """Refuse what a stranger's loss returned, unless it is a scalar tensor."""
    if not isinstance(value, torch.Tensor) or value.dim():
        came = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise DmlError(f"{type(loss).__name__} returned {came}; expected a scalar tensor")
