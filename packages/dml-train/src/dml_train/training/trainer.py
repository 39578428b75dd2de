"""The training loop: load, step, log, evaluate, save.

Random draws, batches and schedules depend only on the run's seed and the step (`dml_train.seeds`).
A checkpoint needs only weights, optimizer, loss, scaler, mined negatives and the best step, and a
resumed run ends with bits identical to a run that was never interrupted.

Shapes: `B` rows of the global batch, `R` rows of this rank's part, `D` embedding dimension.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from dml_core import DmlError, MiningSampler, Registry, all_gather_rows
from dml_core.components import Run
from dml_train.data.batches import Batch, StepBatches, load_ahead
from dml_train.files import write_json
from dml_train.measure.evaluate import (
    Embedded,
    Measurement,
    evaluate_on_ranks,
    evaluate_prefixes_on_ranks,
    save_per_query,
    select_numbers,
)
from dml_train.processes.stopping import RunInterrupted, record_stop_signals
from dml_train.progress import Show, say, stage
from dml_train.ranks.parts import OwnRows
from dml_train.ranks.ranks import SINGLE_PROCESS, DelayedMaximum, Ranks
from dml_train.ranks.sharding import SavedState, Shards
from dml_train.run_folder import RunFolder
from dml_train.seeds import LOSS, seed_torch
from dml_train.training import checkpoint
from dml_train.training.baselines import measure_baselines
from dml_train.training.best import Best
from dml_train.training.build import Experiment
from dml_train.training.checkpoint import Checkpoint
from dml_train.training.divergence import divergence, find_nonfinite, untrained_names
from dml_train.training.initialisation import initialise
from dml_train.training.loggers import CLOCK
from dml_train.training.mining import is_mining_due, mine, segments
from dml_train.training.observers import Observers
from dml_train.training.rehearsal import check_value
from dml_train.training.replica import Replica
from dml_train.training.step_values import StepValues, collect_logged_values


class Trainer:
    """A run, from the newest intact checkpoint in `folder` to the end.

    The `registry` provides loggers, plugins' hooks, and a second backbone for the baselines.
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
        self.registry = registry
        recipe, device = experiment.recipe, experiment.device
        self.training = recipe.training
        self.log_every = recipe.logging.every
        self.evaluate_every = experiment.steps(recipe.evaluation.every, recipe.evaluation.unit)
        self.save_every = experiment.steps(recipe.checkpoints.every, recipe.checkpoints.unit)
        self.batches = StepBatches(
            experiment.train,
            experiment.sampler,
            self.training.seed,
            ranks.rank,
            ranks.world_size,
            self.training.views,
        )
        self.memory_format = (
            torch.channels_last if self.training.channels_last else torch.preserve_format
        )
        self.replica = Replica(experiment, ranks)
        self.shards = Shards(experiment.loss, experiment.optimizer.torch, ranks)
        self.scaler = self.shards.scaler(device, enabled=self.training.precision == "float16")
        # The name under which evaluations during training are logged.
        self.periodic = "evaluation" if experiment.validation is None else "validation"
        self.selects = recipe.validation.selects
        self.best = Best(recipe.validation.metric, recipe.validation.patience)
        self.first_step = self.steps_done = self.restore()
        self.values = StepValues()
        # A GPU computes while the run waits for the next batch, so waiting costs less on a GPU than
        # on a CPU.
        self.most_loading = 0.5 if device.type == "cpu" else 0.9
        self.warned_of_zero = self.warned_of_loading = False
        self.run = Run(
            folder.path, recipe.to_dict(), experiment.num_steps, ranks.rank, ranks.world_size
        )
        context = {
            "directory": folder.path,
            "start_step": self.steps_done,
            "recipe": recipe.to_dict(),
        }
        tables = recipe.logging.loggers if ranks.is_first else []
        loggers = [registry.build("loggers", table, context) for table in tables]
        self.observers = Observers(registry.plugins, loggers, console, self.run)

    def train(self) -> None:
        """Train to the end, and tell loggers and observers how the run ended."""
        self.observers.call("dml_run_start")
        error: BaseException | None = None
        try:
            if not self.steps_done:
                initialise(self.experiment, self.replica, self.batches, self.console, self.ranks)
            with stage(self.console, "train", self.experiment.num_steps, self.steps_done) as show:
                self.take_steps(show)
            self.finish()
        except BaseException as ending:
            error = ending
            raise
        finally:
            self.observers.close()
            self.observers.call("dml_run_end", step=self.steps_done, error=error)

    def take_steps(self, show: Show) -> None:
        """Load, step, log, evaluate and save until the last step, early stopping, or a signal."""
        self.experiment.model.train()
        maximum = DelayedMaximum(self.ranks)
        with record_stop_signals(second_interrupts=self.ranks.world_size == 1) as request:
            for batch in self.load_batches():
                self.step(batch)
                stop_signal = maximum(request.signal_number)
                done, is_last = self.steps_done, self.steps_done == self.experiment.num_steps
                # Skip the last periodic evaluation (`finish` repeats it), unless it selects
                # weights.
                evaluates = is_due(done, self.evaluate_every) and (self.selects or not is_last)
                saves = is_last or is_due(done, self.save_every) or stop_signal > 0
                is_first = done == self.first_step + 1  # show the user early that training works
                if saves or evaluates or is_first or is_due(done, self.log_every):
                    self.log(show)
                improved = evaluates and self.evaluate_periodically()
                if saves or improved or self.best.exhausted:
                    self.save()
                if self.best.exhausted:
                    break
                if stop_signal:
                    raise RunInterrupted(stop_signal, self.steps_done, self.folder.path)
            # Also stop here: the last step is saved, and the following evaluation can take long.
            if stop_signal := max(maximum(request.signal_number), maximum(0)):
                raise RunInterrupted(stop_signal, self.steps_done, self.folder.path)

    def load_batches(self) -> Iterator[Batch]:
        """Load the batches of the remaining steps ahead; none if early stopping ended the run.

        Batches that depend on mined negatives aren't loaded before these are mined. If an image
        can't be loaded, raise a `DmlError` that names the checkpoint to resume from.
        """
        experiment = self.experiment
        pin = experiment.device.type == "cuda"
        end = 0 if self.best.exhausted else experiment.num_steps
        for steps in segments(experiment.sampler, self.steps_done, end):
            if steps and is_mining_due(experiment.sampler, steps.start):
                mine(experiment, self.console, self.ranks)
                self.values.restart_clock()
            try:
                yield from self.values.time_loading(
                    load_ahead(self.batches, steps, self.training.workers, pin=pin)
                )
            except DmlError as error:
                raise DmlError(
                    f"{error}\nThe run ended after step {self.steps_done}; "
                    f"{self.newest_checkpoint()}. Correct this, then resume the run",
                    arguments=("resume",),
                ) from error

    def step(self, batch: Batch) -> None:
        """Take an optimizer step on a global batch."""
        experiment, device, optimizer = (
            self.experiment,
            self.experiment.device,
            self.experiment.optimizer,
        )
        scheduled = experiment.schedules.apply(batch.step)
        optimizer.write_groups()
        images_R = batch.images.to(device, non_blocking=True, memory_format=self.memory_format)
        labels_B = batch.labels.to(device, non_blocking=True)

        embeddings_RD = self.replica.embed(images_R, batch.step)
        seed_torch(device, self.training.seed, LOSS, batch.step)
        loss = self.compute_loss(all_gather_rows(embeddings_RD), labels_B, batch.step, scheduled)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.replica.finish_backward()
        if batch.step == self.first_step:
            optimizer.check_gradients()
        self.ranks.average_gradients(self.shards.select_unsharded(experiment.loss.parameters()))

        values = {"loss": loss.detach(), **collect_logged_values(experiment.loss)}
        self.scaler.unscale_(optimizer.torch)
        if self.training.gradient_clip is not None:
            values["gradient_norm"] = self.shards.clip(
                optimizer.parameters(), self.training.gradient_clip
            )
        self.scaler.step(optimizer.torch)
        self.scaler.update()
        optimizer.torch.zero_grad(set_to_none=True)
        if experiment.average is not None:
            experiment.average.update_parameters(experiment.model)

        self.steps_done = batch.step + 1
        self.values.add(
            self.steps_done, values, {"optimizer.lr": optimizer.lr, **scheduled}, len(labels_B)
        )

    def compute_loss(
        self, embeddings_BD: Tensor, labels_B: Tensor, step: int, scheduled: Mapping[str, float]
    ) -> Tensor:
        """Compute the loss of the global batch.

        Raise a `DmlError` if a schedule moved an option of the loss out of range (the loss checks
        options only when it is built), or if the loss isn't a scalar tensor.
        """
        try:
            value = self.experiment.loss(embeddings_BD, labels_B)
        except (ArithmeticError, ValueError) as error:
            moved = [
                f"{path} = {value:g}"
                for path, value in scheduled.items()
                if path.startswith("loss.")
            ]
            if not moved:
                raise
            raise DmlError(
                f"step {step + 1} failed: {type(error).__name__}: {error}. The schedules had set "
                f"{', '.join(moved)}; {self.newest_checkpoint()}. Correct the schedule, then "
                "resume the run by force",
                arguments=("resume", "force"),
            ) from error
        return check_value(self.experiment.loss, value)

    def log(self, show: Show) -> None:
        """Flush the values buffered on the device to loggers and hooks; raise a `DmlError` if a
        loss isn't finite.
        """
        for step, values in self.values.flush():
            if not math.isfinite(values["loss"]):
                raise divergence(
                    f"the loss of step {step} is {values['loss']} (optimizer.lr "
                    f"{values['optimizer.lr']:.3g})",
                    self.newest_checkpoint(),
                    f"The batch contained the items {self.batches.indices(step - 1).tolist()}",
                )
            if not values["loss"] and not self.warned_of_zero:
                self.warn_of_zero(step)
            self.observers.log(step, values)
            observed = {name: value for name, value in values.items() if not name.startswith(CLOCK)}
            self.observers.call("dml_step_end", step=step, values=observed)
        if not self.warned_of_loading and self.values.loading_share > self.most_loading:
            self.warn_of_loading()
        speed = values[f"{CLOCK}images_per_second"]
        words = f"loss {values['loss']:.4g}  lr {values['optimizer.lr']:.3g}  {speed:.0f} images/s"
        show(self.steps_done, words)

    def warn_of_zero(self, step: int) -> None:
        """Warn once if the loss is exactly 0 because the items in the batch all differ in class."""
        labels_B = self.experiment.train.labels[self.batches.indices(step - 1)]
        if len(np.unique(labels_B)) < len(labels_B):
            return
        self.warned_of_zero = True
        recipe = self.experiment.recipe
        say(
            self.console,
            f"the loss of step {step} is exactly 0: no two of the batch's {len(labels_B)} items "
            f"have the same class, and the loss {recipe.loss['name']!r} compares such pairs. The "
            f"sampler {recipe.sampler['name']!r} rarely draws them; use a sampler that draws "
            'several items per class: --set \'sampler={name="class-balanced", '
            "classes_per_batch=16, images_per_class=4}'",
        )

    def warn_of_loading(self) -> None:
        """Warn once that loading takes longer than the steps, and name the settings that make
        loading faster.
        """
        self.warned_of_loading = True
        dataset, workers, cores = (
            self.experiment.recipe.dataset,
            self.training.workers,
            os.cpu_count() or 1,
        )
        remedies = []
        options = self.registry.entry("datasets", dataset["name"]).component.options
        if any(option.name == "cache" for option in options) and dataset.get("cache") is None:
            remedies.append("decode each image once (--set dataset.cache=FOLDER)")
        if workers < cores:
            remedies.append(
                f"load in more processes (training.workers is {workers}, and the machine has "
                f"{cores} cores)"
            )
        if remedies:
            share = f"{self.values.loading_share:.0%} of the training time"
            say(
                self.console,
                f"loading images takes {share}, longer than the steps; " + ", or ".join(remedies),
            )

    def evaluate_periodically(self) -> bool:
        """Evaluate during training, and return whether to keep these weights as the best so far."""
        measured = self.evaluate(
            self.experiment.embed_watched(self.console, self.ranks), self.periodic
        )
        return self.selects and self.best.update(self.steps_done, select_numbers(measured.metrics))

    def evaluate(self, embedded: Embedded, name: str) -> Measurement:
        """Evaluate an embedding, and send the metrics to loggers and hooks."""
        measured = evaluate_on_ranks(self.ranks, self.experiment.evaluator, embedded)
        numbers = select_numbers(measured.metrics)
        self.observers.log(
            self.steps_done, {f"{name}/{key}": value for key, value in numbers.items()}
        )
        result = {**measured.metrics, "split": split_of(name)}
        self.observers.call("dml_evaluation_end", step=self.steps_done, result=result)
        self.values.restart_clock()
        return measured

    def save(self) -> None:
        """Write a checkpoint, and remove old checkpoints.

        Raise a `DmlError`, and don't write, if a weight or a moment isn't finite, or the disk is
        full or fails.
        """
        experiment, folder = self.experiment, self.folder.checkpoints
        saved = self.shards.split_state()
        weights, state = experiment.evaluated_model.state_dict(), self.compose_state(saved)
        self.check_finite(weights, state, saved.rows)
        written = checkpoint.write(folder, self.steps_done, weights, state, saved.rows, self.ranks)

        def end() -> None:
            checkpoint.prune(folder, experiment.recipe.checkpoints.keep, {self.best.step})
            self.observers.call("dml_checkpoint_saved", step=self.steps_done, path=written.path)

        self.ranks.run_on_first(end)
        self.values.restart_clock()

    def compose_state(self, saved: SavedState) -> dict[str, Any]:
        """Compose a checkpoint's state, except the evaluated network's weights."""
        experiment = self.experiment
        state: dict[str, Any] = {
            "loss": saved.loss,
            "optimizer": saved.optimizer,
            "scaler": self.scaler.state_dict(),
            "best": self.best.state_dict(),
        }
        if experiment.average is not None:
            state |= {
                "model": experiment.model.state_dict(),
                "averaged": experiment.average.n_averaged,
            }
        sampler = experiment.sampler
        if isinstance(sampler, MiningSampler) and sampler.negatives is not None:
            state["negatives"] = torch.from_numpy(sampler.negatives)
        return state

    def check_finite(
        self, weights: Mapping[str, Tensor], state: Mapping[str, Any], rows: Mapping[str, OwnRows]
    ) -> None:
        """On every rank, raise a `DmlError` if a number in weights or state, or in any rank's rows,
        isn't finite.
        """
        untrained = untrained_names(self.experiment.model, self.experiment.loss)
        name = find_nonfinite(weights, state, rows, untrained, shared=self.ranks.is_first)
        names = self.ranks.gather_object(name)

        def check() -> None:
            if found := next(filter(None, names), None):
                raise divergence(
                    f"after step {self.steps_done} {found} isn't finite, so a checkpoint is not "
                    "saved",
                    self.newest_checkpoint(),
                )

        self.ranks.run_on_first(check)

    def restore(self) -> int:
        """Load the newest intact checkpoint and return its step; 0 if there is none."""

        def find() -> Checkpoint | None:
            for path, fault in checkpoint.corrupt(self.folder.checkpoints).items():
                say(self.console, f"ignoring the corrupt checkpoint {path}: {fault}")
            return checkpoint.newest_intact(self.folder.checkpoints)

        newest = self.ranks.run_on_first(find)
        if newest is None:
            return 0
        experiment, state = self.experiment, newest.state(mapped=bool(self.shards))
        weights = newest.weights()
        # If a forced resume adds an average, the average starts here. If a forced resume removes
        # the average, training continues from the averaged weights.
        experiment.model.load_state_dict(state.get("model", weights))
        if experiment.average is not None:
            experiment.average.module.load_state_dict(weights)
            experiment.average.n_averaged.fill_(state.get("averaged", 0))
        self.shards.load_state(state["loss"], state["optimizer"], newest.parts())
        if state["scaler"]:  # empty if scaling isn't used
            self.scaler.load_state_dict(state["scaler"])
        self.best.load_state_dict(state["best"])
        if isinstance(experiment.sampler, MiningSampler) and "negatives" in state:
            experiment.sampler.set_negatives(state["negatives"].numpy())
        return newest.step

    def finish(self) -> None:
        """Embed and evaluate the test split, and write both to the folder; write the manifest last.

        If evaluations select weights, use the best weights. With ``evaluation.test = false``,
        evaluate the held-out classes instead, and don't write an embedding.
        """
        if self.best.step not in (0, self.steps_done):
            best = self.ranks.run_on_first(
                lambda: checkpoint.find_step(self.folder.checkpoints, self.best.step)
            )
            best.load_into(self.experiment.evaluated_model)
        recipe = self.experiment.recipe
        if recipe.evaluation.test:
            embedded = self.experiment.embed_test(self.console, self.ranks)
            self.ranks.run_on_first(lambda: embedded.write(self.folder))
            measured = self.evaluate(embedded, "evaluation")
            if recipe.evaluation.baselines:
                measure_baselines(
                    self.experiment, self.folder, self.registry, self.console, self.ranks
                )
        else:
            embedded = self.experiment.embed_watched(self.console, self.ranks)
            measured = self.evaluate(embedded, self.periodic)
        result: dict[str, Any] = {
            **measured.metrics,
            "step": self.best.step or self.steps_done,
            "split": "test" if recipe.evaluation.test else "validation",
            "selected_on": split_of(self.periodic) if self.best.step else None,
            "evaluator": recipe.evaluation.name,
        }
        if prefixes := recipe.evaluation.prefixes:
            evaluator = self.experiment.evaluator
            result["prefixes"] = evaluate_prefixes_on_ranks(
                self.ranks, evaluator, embedded, prefixes
            )

        def write() -> None:
            if recipe.evaluation.test and measured.evaluation is not None:
                save_per_query(self.folder, recipe, measured.evaluation)
            write_json(self.folder.evaluation, result)
            self.folder.write_manifest()

        self.ranks.run_on_first(write)

    def newest_checkpoint(self) -> str:
        """Describe the checkpoint to resume a failed run from."""
        return checkpoint.describe_newest(self.folder.checkpoints)


def split_of(name: str) -> str:
    """Return the split with metrics logged under this name."""
    return "test" if name == "evaluation" else name


def is_due(step: int, every: int) -> bool:
    """Return whether a periodic action is due after this step; a period of 0 means never."""
    return every > 0 and step % every == 0
