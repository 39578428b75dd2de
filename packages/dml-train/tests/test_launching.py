"""`dml train --nproc`: the errors of ranks, how signals stop them, and that no process survives."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import sys
import time

import pytest
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from train_support import launching, tiny_run

from dml_core import DmlError
from dml_train.processes.signals import handle_signals
from dml_train.ranks.launch import StopHandler, launch
from dml_train.ranks.ranks import LOST_RANK
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

PATIENCE = 600  # seconds after which a process counts as hanging
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
WAITING = "while :; do sleep 0.1; done"  # waits for a signal, and leaves no child process


@pytest.fixture
def set_rank_script(tmp_path, monkeypatch):
    """Make `launch` start a shell script as each rank."""

    def make(script):
        program = tmp_path / "rank.sh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return make


def test_the_rank_that_died_is_named_and_the_others_are_stopped(set_rank_script, tmp_path):
    script = "[ $RANK = 1 ] && {{ until [ -e '{0}/ready' ]; do sleep 0.01; done; kill -9 $$; }}\n"
    script += "trap \"touch '{0}/stopped'; exit 1\" TERM\ntouch '{0}/ready'\n" + WAITING
    set_rank_script(script.format(tmp_path))
    with pytest.raises(
        DmlError, match=r"rank 1 of 2 was killed by SIGKILL, and the others were stopped; resume from"
    ):
        launch(2, [], tmp_path / "run", 60)
    assert (tmp_path / "stopped").exists()


def test_the_error_of_a_rank_is_raised(set_rank_script, tmp_path):
    content = json.dumps({"message": "the recipe is wrong", "timestamp": 1})
    set_rank_script(f"echo '{content}' > $TORCHELASTIC_ERROR_FILE; exit 2")
    with pytest.raises(DmlError, match=r"^the recipe is wrong$"):
        launch(2, [], tmp_path / "run", 60)


def test_the_error_of_the_failing_rank_precedes_that_of_the_rank_that_lost_it(set_rank_script, tmp_path):
    lost, cause = (
        json.dumps({"message": words, "timestamp": 1})
        for words in ("rank 0 lost another rank", "rank 1 broke")
    )
    # The failing rank ends only after the other one, when it is stopped.
    reports = "echo $words > $TORCHELASTIC_ERROR_FILE; exit 2"
    first = f"words='{lost}'; until [ -e '{tmp_path}/ready' ]; do sleep 0.01; done; {reports}"
    set_rank_script(
        f"[ $RANK = 0 ] && {{ {first}; }}\nwords='{cause}'\ntrap '{reports}' TERM\ntouch '{tmp_path}/ready'\n{WAITING}"
    )
    with pytest.raises(DmlError, match=r"^rank 1 broke$"):
        launch(2, [], tmp_path / "run", 60)


@pytest.fixture
def start(tmp_path):
    """Start a function of the module `launching` in a new process, forked from one that has imported everything."""
    processes = []

    def start_process(work, *arguments):
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=work, args=(tmp_path, *arguments))
        process.start()
        processes.append(process)
        return process

    yield start_process
    for process in processes:
        process.kill()
        process.join()


def wait_until(condition):
    """Wait for a condition: a moment, or minutes on a machine with ten times more work than cores."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_printed(tmp_path, text):
    return lambda: text in (tmp_path / "errors").read_text()


def exist(tmp_path, *names):
    return lambda: all((tmp_path / name).exists() for name in names)


def have_ended(tmp_path, *names):
    """Return whether the processes whose ids are in these files have ended."""
    for name in names:
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)
    return True


# The start of a rank's script: it writes the process id into a file. A trap before it handles signals.
STARTED = "echo $$ > '{tmp}'/$RANK.part; mv '{tmp}'/$RANK.part '{tmp}'/$RANK"
STUBBORN = f"trap '' INT TERM\n{STARTED}\n[ $RANK = 1 ] && kill -STOP $$\nexec sleep 600"


def test_a_second_ctrl_c_kills_ranks_that_do_not_stop_and_a_suspended_one(start, tmp_path):
    process = start(launching.launch_script, STUBBORN, 600)
    wait_until(exist(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, signal.SIGINT)
    wait_until(is_printed(tmp_path, "Ctrl-C once more kills all ranks"))
    os.kill(process.pid, signal.SIGTERM)  # counts as no second Ctrl-C
    os.kill(process.pid, signal.SIGINT)
    process.join(PATIENCE)
    assert process.exitcode == 128 + signal.SIGINT
    assert is_printed(
        tmp_path, f"all ranks were killed; resume from the last checkpoint in {tmp_path / 'run'}"
    )()
    assert have_ended(tmp_path, "0", "1")


def test_a_second_ctrl_c_may_come_while_the_first_one_is_handled(monkeypatch):
    more = iter([signal.SIGINT])
    monkeypatch.setattr(os, "write", lambda stream, message: any(map(signal.raise_signal, more)))
    stop = StopHandler()
    stop.ranks = object.__new__(SubprocessContext)
    stop.ranks.subprocess_handlers = {}
    with handle_signals([signal.SIGINT], stop):
        signal.raise_signal(signal.SIGINT)
    assert stop.signal_number == signal.SIGINT
    assert stop.killed


def test_ranks_that_do_not_stop_within_the_timeout_are_killed(start, tmp_path):
    process = start(launching.launch_script, STUBBORN, 0.5)
    wait_until(exist(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, signal.SIGTERM)
    process.join(PATIENCE)
    assert process.exitcode == 2
    assert is_printed(tmp_path, "ranks 0, 1 of 2 didn't end within the timeout (training.timeout)")()
    assert have_ended(tmp_path, "0", "1")


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        (f"rank 0 of 2 {LOST_RANK}", "rank 1 of 2 didn't end within the timeout (training.timeout)"),
        ("the disk is full", "the disk is full"),
    ],
    ids=["lost", "own error"],
)
def test_a_hanging_rank_is_named_unless_another_one_has_an_error_of_its_own(
    start, tmp_path, message, printed
):
    content = json.dumps({"message": message, "timestamp": 1})
    script = f"CONTENT='{content}'\ntrap 'echo $CONTENT > $TORCHELASTIC_ERROR_FILE; exit 2' TERM\n{STARTED}\n"
    script += f"[ $RANK = 1 ] && kill -STOP $$\n{WAITING}"
    process = start(launching.launch_script, script, 1)
    wait_until(exist(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, signal.SIGTERM)
    process.join(PATIENCE)
    assert process.exitcode == 2
    assert is_printed(tmp_path, printed)()
    assert not is_printed(tmp_path, "SIGKILL")()
    assert have_ended(tmp_path, "0", "1")


@pytest.mark.parametrize(
    ("number", "passed_on", "command", "code", "text"),
    [
        (signal.SIGINT, "INT", "exit 130", 130, ""),
        (signal.SIGTERM, "TERM", "exit 143", 143, ""),
        (signal.SIGHUP, "TERM", "exit 143", 143, ""),  # a run saves when its terminal closes, too
        (signal.SIGINT, "INT", "exit 0", 0, ""),  # it finished at that moment
        (signal.SIGINT, "INT", "echo $CONTENT > $TORCHELASTIC_ERROR_FILE; exit 2", 2, "the disk is full"),
    ],
)
def test_the_launcher_ends_as_its_stopped_ranks_do(start, tmp_path, number, passed_on, command, code, text):
    content = json.dumps({"message": text, "timestamp": 1})
    script = f"CONTENT='{content}'\ntrap '{command}' {passed_on}\n{STARTED}\n{WAITING}"
    process = start(launching.launch_script, script, 600)
    wait_until(exist(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, number)
    process.join(PATIENCE)
    assert process.exitcode == code
    assert is_printed(tmp_path, text)()
    assert have_ended(tmp_path, "0", "1")


def test_ranks_launched_under_nohup_survive_a_closed_terminal(start, tmp_path):
    script = f"{STARTED}\nwhile ! [ -e '{{tmp}}/done' ]; do sleep 0.1; done"
    process = start(launching.launch_script, script, 600, signal.SIGHUP)
    wait_until(exist(tmp_path, "launched", "0", "1"))
    os.kill(process.pid, signal.SIGHUP)
    (tmp_path / "done").touch()
    process.join(PATIENCE)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("elastic", "leads", "suspended", "end"),
    [
        (True, True, False, "stopped"),
        pytest.param(True, True, True, "stopped", marks=on_linux),
        (True, False, False, "survived"),
        (False, True, False, "survived"),
    ],
)
def test_only_a_rank_started_by_an_agent_ends_with_its_parent(
    start, tmp_path, elastic, leads, suspended, end
):
    process = start(launching.fork_orphan, elastic, leads, suspended)
    process.join(PATIENCE)
    wait_until(exist(tmp_path, "end"))
    assert (tmp_path / "end").read_text() == end


@on_linux
def test_ranks_whose_launcher_is_killed_save_and_leave_no_process_even_if_one_is_suspended(
    start, tiny_document, tmp_path
):
    document = tiny_document(
        training={"steps": 10**6, "workers": 1, "timeout": 60}, checkpoints={"every": 0}, logging={"every": 1}
    )
    (tmp_path / "run.json").write_text(json.dumps(document))
    run = RunFolder(tmp_path / "run")
    mark = f"DML_TEST_MARK={tmp_path}"
    command = shlex.join(tiny_run.command(tmp_path / "run.json", run.path))
    script = f"export {shlex.quote(mark)}\ncd {shlex.quote(str(tiny_run.FOLDER))}\nexec {command}"
    process = start(launching.launch_script, script, 60)
    wait_until(lambda: run.metrics.exists() and run.metrics.stat().st_size)
    processes = launching.list_marked(mark)
    assert len(processes) >= 4  # two ranks, each with a loader process
    for suspended in set(processes) & set(launching.list_marked("RANK=1")):  # with its loader
        os.kill(suspended, signal.SIGSTOP)
    process.kill()
    wait_until(lambda: not launching.list_marked(mark))
    assert is_printed(tmp_path, "RunInterrupted: stopped by SIGTERM after step")()
    last = json.loads(run.metrics.read_text().splitlines()[-1])["step"]
    assert checkpoint.newest_intact(run.checkpoints).step == last > 0
    with run.lock():  # it can be resumed
        pass
