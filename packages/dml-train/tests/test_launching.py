"""`dml train --nproc`: what ranks have to say, how they are asked to stop, and that none is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import launched
import pytest
import tiny_run
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from dml_core import DmlError
from dml_train.processes.signals import handle_signals
from dml_train.ranks.launch import StopHandler, launch
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

PATIENCE = 600  # seconds after which a process is taken to hang
WAITING = "while :; do sleep 0.1; done"  # for a signal, and with nothing left running when it came


@pytest.fixture
def ranks_are(tmp_path, monkeypatch):
    """Ranks that `launch` starts run this shell script."""

    def make(script):
        program = tmp_path / "rank.sh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return make


def test_the_rank_that_died_is_named_and_the_others_are_stopped(ranks_are, tmp_path):
    script = "[ $RANK = 1 ] && {{ until [ -e '{0}/ready' ]; do sleep 0.01; done; kill -9 $$; }}\n"
    script += "trap \"touch '{0}/stopped'; exit 1\" TERM\ntouch '{0}/ready'\n" + WAITING
    ranks_are(script.format(tmp_path))
    with pytest.raises(
        DmlError, match=r"rank 1 of 2 was killed by SIGKILL, and the others were stopped; resume from"
    ):
        launch(2, [], tmp_path / "run", 60)
    assert (tmp_path / "stopped").exists()


def test_what_a_rank_has_to_say_is_said(ranks_are, tmp_path):
    words = json.dumps({"message": "the recipe is wrong", "timestamp": 1})
    ranks_are(f"echo '{words}' > $TORCHELASTIC_ERROR_FILE; exit 2")
    with pytest.raises(DmlError, match=r"^the recipe is wrong$"):
        launch(2, [], tmp_path / "run", 60)


def test_what_the_cause_has_to_say_comes_before_what_the_rank_that_lost_it_says(ranks_are, tmp_path):
    lost, cause = (
        json.dumps({"message": words, "timestamp": 1})
        for words in ("rank 0 lost another rank", "rank 1 broke")
    )
    # The one that has the cause ends only when the other has, and it is stopped.
    says = "echo $words > $TORCHELASTIC_ERROR_FILE; exit 2"
    first = f"words='{lost}'; until [ -e '{tmp_path}/ready' ]; do sleep 0.01; done; {says}"
    ranks_are(
        f"[ $RANK = 0 ] && {{ {first}; }}\nwords='{cause}'\ntrap '{says}' TERM\ntouch '{tmp_path}/ready'\n{WAITING}"
    )
    with pytest.raises(DmlError, match=r"^rank 1 broke$"):
        launch(2, [], tmp_path / "run", 60)


@pytest.fixture
def started(tmp_path):
    """Do something of the module `launched` in a process of its own, forked from one that has imported everything."""
    begun = []

    def start(work, *arguments):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["dml_losses.plugin", "dml_train.training.run", "dml_train.ranks.launch"]
        )
        process = context.Process(target=work, args=(tmp_path, *arguments))
        process.start()
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.join()


def until(true):
    """Wait for it: a moment, or minutes on a machine with ten times the work that it has cores for."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def said(tmp_path, words):
    return lambda: words in (tmp_path / "errors").read_text()


def there(tmp_path, *names):
    return lambda: all((tmp_path / name).exists() for name in names)


def gone(tmp_path, *names):
    """Whether the processes whose ids are in these files have ended."""
    for name in names:
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)
    return True


# A rank that says that it has begun, and its id, and does what a trap says when it is asked to stop.
BEGUN = "echo $$ > '{tmp}'/$RANK.part; mv '{tmp}'/$RANK.part '{tmp}'/$RANK"
STUBBORN = f"trap '' INT TERM\n{BEGUN}\n[ $RANK = 1 ] && kill -STOP $$\nexec sleep 600"


def test_a_second_ctrl_c_kills_ranks_that_do_not_stop_even_one_that_is_halted(started, tmp_path):
    process = started(launched.launch_script, STUBBORN, 600)
    until(there(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, signal.SIGINT)
    until(said(tmp_path, "Ctrl-C once more kills all ranks"))
    os.kill(process.pid, signal.SIGTERM)  # which is no Ctrl-C
    os.kill(process.pid, signal.SIGINT)
    process.join(PATIENCE)
    assert process.exitcode == 128 + signal.SIGINT
    assert said(tmp_path, f"all ranks were killed; resume from the last checkpoint in {tmp_path / 'run'}")()
    assert gone(tmp_path, "0", "1")


def test_a_second_ctrl_c_may_come_while_the_first_one_is_being_answered(monkeypatch):
    more = iter([signal.SIGINT])
    monkeypatch.setattr(os, "write", lambda stream, words: any(map(signal.raise_signal, more)))
    stop = StopHandler()
    stop.ranks = object.__new__(SubprocessContext)
    stop.ranks.subprocess_handlers = {}
    with handle_signals([signal.SIGINT], stop):
        signal.raise_signal(signal.SIGINT)
    assert stop.signal_number == signal.SIGINT
    assert stop.killed


def test_ranks_that_do_not_stop_within_the_timeout_are_killed(started, tmp_path):
    process = started(launched.launch_script, STUBBORN, 0.5)
    until(there(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, signal.SIGTERM)
    process.join(PATIENCE)
    assert process.exitcode == 2
    assert said(tmp_path, "of 2 was killed by SIGKILL")()
    assert gone(tmp_path, "0", "1")


@pytest.mark.parametrize(
    ("number", "passed_on", "does", "code", "words"),
    [
        (signal.SIGINT, "INT", "exit 130", 130, ""),
        (signal.SIGTERM, "TERM", "exit 143", 143, ""),
        (signal.SIGHUP, "TERM", "exit 143", 143, ""),  # a terminal that closes is no reason not to save
        (signal.SIGINT, "INT", "exit 0", 0, ""),  # it was done just then
        (signal.SIGINT, "INT", "echo $WORDS > $TORCHELASTIC_ERROR_FILE; exit 2", 2, "the disk is full"),
    ],
)
def test_what_comes_of_asking_ranks_to_stop_is_what_the_launcher_says(
    started, tmp_path, number, passed_on, does, code, words
):
    words_file = json.dumps({"message": words, "timestamp": 1})
    script = f"WORDS='{words_file}'\ntrap '{does}' {passed_on}\n{BEGUN}\n{WAITING}"
    process = started(launched.launch_script, script, 600)
    until(there(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, number)
    process.join(PATIENCE)
    assert process.exitcode == code
    assert said(tmp_path, words)()
    assert gone(tmp_path, "0", "1")


def test_ranks_launched_under_nohup_go_on_when_the_terminal_closes(started, tmp_path):
    script = f"{BEGUN}\nwhile ! [ -e '{{tmp}}/done' ]; do sleep 0.1; done"
    process = started(launched.launch_script, script, 600, signal.SIGHUP)
    until(there(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, signal.SIGHUP)
    (tmp_path / "done").touch()
    process.join(PATIENCE)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("elastic", "leads", "end"), [(True, True, "asked"), (True, False, "went on"), (False, True, "went on")]
)
def test_only_a_rank_that_an_agent_started_itself_ends_with_its_parent(
    started, tmp_path, elastic, leads, end
):
    process = started(launched.orphaned, elastic, leads)
    process.join(PATIENCE)
    until(there(tmp_path, "end"))
    assert (tmp_path / "end").read_text() == end


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="needs /proc to find every process of the run"
)
def test_ranks_whose_launcher_is_killed_save_and_leave_nothing_behind(started, tiny_document, tmp_path):
    document = tiny_document(
        training={"steps": 10**6, "workers": 1, "timeout": 60}, checkpoints={"every": 0}, logging={"every": 1}
    )
    (tmp_path / "run.json").write_text(json.dumps(document))
    run = RunFolder(tmp_path / "run")
    mark = f"DML_TEST_MARK={tmp_path}"
    command = shlex.join(map(str, (sys.executable, tiny_run.__file__, tmp_path / "run.json", run.path)))
    script = f"export {shlex.quote(mark)}\nexec {command}"
    process = started(launched.launch_script, script, 60)
    until(lambda: run.metrics.exists() and run.metrics.stat().st_size)
    ranks_and_helpers = launched.marked(mark)
    assert len(ranks_and_helpers) >= 4  # two ranks, each with a loader process
    process.kill()
    until(lambda: not launched.marked(mark))
    assert said(tmp_path, "RunInterrupted: stopped by SIGTERM after step")()
    last = json.loads(run.metrics.read_text().splitlines()[-1])["step"]
    assert checkpoint.newest_intact(run.checkpoints).step == last > 0
    with run.lock():  # so that it can be resumed
        pass
