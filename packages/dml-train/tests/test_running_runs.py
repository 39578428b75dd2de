"""The report of a run that trains or failed, and the line on the terminal."""

from __future__ import annotations

import json
import re
import threading
import time
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console
from train_support.report_world import Page, check_page
from train_support.tiny_world import provide

from dml_core import DmlError, hookimpl
from dml_train.recipe.checking import parse
from dml_train.report import watching, write_report, write_side_by_side
from dml_train.report.progress import Progress
from dml_train.report.watching import watch_report
from dml_train.run_folder import RunFolder
from dml_train.training.journal import Start, read_failures
from dml_train.training.run import train

EVALUATED = {"every": 2, "unit": "step"}


class CallAt:
    """Call a function after a step."""

    def __init__(self, step, call):
        self.step, self.call = step, call

    @hookimpl
    def dml_step_end(self, run, step):
        if step == self.step:
            self.call()


@pytest.fixture
def start(tiny_document, registry, tmp_path):
    """Train a tiny run, and return what it wrote on the console."""

    def started(resume=False, **changes):
        text = StringIO()
        recipe = parse(tiny_document(**changes), registry)
        train(recipe, tmp_path / "run", resume=resume, force=resume, registry=registry,
              console=Console(file=text, width=200))  # fmt: skip
        return text.getvalue()

    return started


def words(path):
    page = Page(path)
    check_page(page)
    return page.words


def test_a_running_run_reports_how_far_it_is_and_the_last_evaluation(start, registry, tmp_path):
    run, seen = tmp_path / "run", []

    def look():
        seen.append(words(write_report(run, registry)))
        seen.append(Progress.read(RunFolder(run), RunFolder(run).read_metrics()))
        with pytest.raises(DmlError, match="isn't finished"):
            write_side_by_side([run, run], tmp_path / "both.html", registry)

    registry.plugins.register(CallAt(5, look), distribution="look")
    start(training={"steps": 8}, evaluation=EVALUATED, logging={"every": 1})
    said, progress = seen
    assert "Training: step 5 of 8 (62%)." in said
    assert "minutes of training are left" in said
    assert "The metrics are from the evaluation after step 4." in said
    assert "Recall@1" in said
    assert progress.is_running
    assert 0 < progress.seconds_left < 600
    # The page of the finished run doesn't say so, and the file about the start is removed.
    assert "of training are left" not in words(write_report(run, registry))
    assert not RunFolder(run).progress.exists()


def test_an_interrupted_run_is_not_said_to_train_and_a_partial_last_line_is_omitted(
    start, registry, tmp_path
):
    run = tmp_path / "run"

    def die():
        raise KeyboardInterrupt

    registry.plugins.register(CallAt(3, die), distribution="die")
    with pytest.raises(KeyboardInterrupt):
        start(training={"steps": 8}, logging={"every": 1})
    with RunFolder(run).metrics.open("a") as file:
        file.write('{"step": 4, "lo')
    said = words(write_report(run, registry))
    assert "Interrupted: step 3 of 8 (38%). The run has not been evaluated yet." in said
    assert "are left" not in said


def test_the_time_left_is_that_of_the_steps_since_the_process_started(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 30}\n')
    started = folder.metrics.stat().st_mtime - 20
    folder.progress.write_text(json.dumps(Start(100, 20, started)._asdict()))
    progress = Progress.read(folder, folder.read_metrics())
    assert (progress.step, progress.num_steps, progress.is_running) == (30, 100, False)
    assert progress.seconds_left == pytest.approx(70 * 20 / 10)


def test_a_watched_report_is_written_at_each_evaluation_until_the_end(
    start, registry, tmp_path, monkeypatch
):
    run, written = tmp_path / "run", []
    monkeypatch.setattr(watching, "_SECONDS", 0.01)
    watcher = threading.Thread(
        target=lambda: watch_report(run, registry, lambda path: written.append(words(path)))
    )

    def wait_for(count):
        def wait():
            if not watcher.is_alive():
                watcher.start()
            while len(written) < count:
                time.sleep(0.01)

        return wait

    for step, count in ((1, 1), (3, 2), (5, 3)):
        registry.plugins.register(CallAt(step, wait_for(count)), distribution=f"wait-{step}")
    start(training={"steps": 6}, evaluation=EVALUATED, logging={"every": 1})
    watcher.join()
    evaluated = [text.partition("evaluation after step ")[2][:1] for text in written]
    assert evaluated[:3] == ["", "2", "4"]
    assert "Training" not in written[-1]
    watch_report(run, registry, written.append)  # of a finished run: once


def test_a_batch_that_became_nan_is_shown_with_its_pictures_until_the_step_is_repeated(
    start, registry, tmp_path
):
    folder = RunFolder(tmp_path / "run")
    bad = {"loss.scale": {"kind": "step", "values": [1, float("nan")], "milestones": [5]}}
    with pytest.raises(DmlError, match="the loss of step 6 is nan"):
        start(
            training={"steps": 8},
            schedule=bad,
            validation={"class_fraction": 0.34, "metric": "recall@1"},
            evaluation=EVALUATED,
        )
    (failure,) = read_failures(folder)
    assert failure.step == 6
    page = Page(write_report(folder.path, registry))
    check_page(page)
    assert "Step 6 The loss of step 6 is nan (optimizer.lr" in page.words
    pictures = [image for image in page.all("img") if image["alt"].startswith("Item of the batch")]
    assert len(pictures) == len(failure.items) > 0
    start(
        resume=True,
        training={"steps": 8},
        validation={"class_fraction": 0.34, "metric": "recall@1"},
        evaluation=EVALUATED,
    )
    assert not folder.failures.exists()
    assert "Failures" not in words(write_report(folder.path, registry))


class Nothing(torch.nn.Module):
    def forward(self, embeddings, labels):
        return 0 * embeddings.sum()


def test_the_first_batch_with_a_loss_of_zero_is_shown_in_the_finished_report(
    start, registry, tmp_path
):
    provide(registry, "losses", "zero", Nothing)
    start(training={"steps": 3}, loss={"name": "zero"})
    (failure,) = read_failures(RunFolder(tmp_path / "run"))
    assert failure.step == 1
    said = words(write_report(tmp_path / "run", registry))
    assert "Step 1 The loss of step 1 is exactly 0, so the batch didn't train." in said


class TwoTerms(torch.nn.Module):
    """A loss that logs two values."""

    def forward(self, embeddings, labels):
        self.shown = {
            "terms.first": embeddings.square().sum(),
            "terms.second": embeddings.abs().sum(),
        }
        return self.shown["terms.first"] + self.shown["terms.second"]

    def logged_values(self):
        return {name: value.detach() for name, value in self.shown.items()}


def test_the_line_on_the_terminal_says_loss_terms_speed_time_left_and_the_best_metric(
    start, registry, monkeypatch
):
    provide(registry, "losses", "two", TwoTerms)
    monkeypatch.setattr("dml_train.progress._SECONDS_BETWEEN_LINES", 0.0)
    said = start(training={"steps": 6}, loss={"name": "two"}, evaluation=EVALUATED,
        logging={"every": 1},
                 validation={"metric": "recall@1"})  # fmt: skip
    line = next(line for line in said.splitlines() if line.startswith("train 5/6"))
    parts = r"train 5/6  loss \S+ \(first \S+, second \S+\)  lr \S+  \d+ images/s  "
    assert re.match(parts + r"best Recall@1 0\.\d{4} \(step [24]\)  \d+:\d\d left", line), line
    assert np.isfinite(float(line.split()[3]))


def test_the_command_watches_one_run(start, dml, tmp_path):
    run = tmp_path / "run"
    start(training={"steps": 2})
    assert dml("report", "--watch", run).output.split() == [str(run / "report.html")]
    error = dml("report", "--watch", run, run, "--out", tmp_path / "both.html", code=2).stderr
    assert "--watch needs a single run, but 2 were given" in error
