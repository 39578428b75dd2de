"""`dml train --nproc` reports errors of ranks, stops ranks by signals, and should not leave
processes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import sys
import time

import pytest
from train_support import launching, tiny_run

from dml_train.ranks.ranks import LOST_RANK
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

PATIENCE = 600  # seconds after which a process counts as hanging
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
WAITING = "while :; do sleep 0.1; done"  # waits for a signal; does not leave a child process
# The start of a rank's script, which writes the process id into a file. To handle signals, put a
# trap before it.
STARTED = "echo $$ > '{tmp}'/$RANK.part; mv '{tmp}'/$RANK.part '{tmp}'/$RANK"


@pytest.fixture
def start(tmp_path):
    """Start a function of the module `launching` in a new process, forked when everything is
    imported.
    """
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


@pytest.fixture
def launch(start, tmp_path):
    """Launch a shell script on 2 ranks, send a signal to the launcher, and return the exit code and
    errors.
    """

    def launch(script, number=None, timeout=600, ignored=None):
        process = start(launching.launch_script, script, timeout, ignored)
        if number is not None:
            wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"))
            os.kill(process.pid, number)
        process.join(PATIENCE)
        errors = (
            (tmp_path / "errors").read_text().replace("Terminated\n", "")
        )  # about the shell's `sleep`
        return process.exitcode, errors

    return launch


def wait_until(condition):
    """Wait until a condition is true, usually a moment, but minutes on an overloaded machine."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reports(message):
    """Return the shell command used by a rank to report an error and end."""
    content = shlex.quote(json.dumps({"message": message, "timestamp": 1}))
    return f"echo {content} > $TORCHELASTIC_ERROR_FILE; exit 2"


def assert_ended(tmp_path):
    for rank in "01":
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / rank).read_text()), 0)


def test_the_rank_that_died_is_named_and_the_others_are_stopped(launch, tmp_path):
    script = "[ $RANK = 1 ] && { until [ -e '{tmp}/ready' ]; do sleep 0.01; done; kill -9 $$; }\n"
    script += "trap \"touch '{tmp}/stopped'; exit 1\" TERM\ntouch '{tmp}/ready'\n" + WAITING
    code, errors = launch(script)
    assert code == 2
    assert errors.startswith(
        "rank 1 of 2 was killed by SIGKILL, and the others were stopped; resume from"
    )
    assert (tmp_path / "stopped").exists()


def test_the_error_of_a_rank_is_raised(launch):
    assert launch(reports("the recipe is wrong")) == (2, "the recipe is wrong\n")


def test_the_error_of_the_failing_rank_precedes_that_of_the_rank_that_lost_it(launch):
    # The failing rank only ends when it is stopped, after the other rank.
    lost = f"until [ -e '{{tmp}}/ready' ]; do sleep 0.01; done; {reports(f'rank 0 {LOST_RANK}')}"
    script = f"CAUSE() {{ {reports('rank 1 broke')}; }}\n[ $RANK = 0 ] && {{ {lost}; }}\n"
    script += f"trap CAUSE TERM\ntouch '{{tmp}}/ready'\n{WAITING}"
    assert launch(script) == (2, "rank 1 broke\n")


def test_ranks_that_do_not_stop_within_the_timeout_are_killed(launch, tmp_path):
    script = f"trap '' INT TERM\n{STARTED}\n[ $RANK = 1 ] && kill -STOP $$\nexec sleep 600"
    code, _ = launch(script, signal.SIGTERM, timeout=0.5)
    assert code == 128 + signal.SIGTERM
    assert_ended(tmp_path)


@pytest.mark.parametrize(
    ("number", "command", "code", "text"),
    [
        (signal.SIGINT, "exit 130", 130, ""),
        (signal.SIGTERM, "exit 143", 143, ""),
        (signal.SIGINT, reports("the disk is full"), 2, "the disk is full\n"),
    ],
)
def test_the_launcher_ends_as_its_stopped_ranks_do(launch, tmp_path, number, command, code, text):
    script = (
        f"STOP() {{ {command}; }}\ntrap STOP "
        f"{number.name.removeprefix('SIG')}\n{STARTED}\n{WAITING}"
    )
    assert launch(script, number) == (code, text)
    assert_ended(tmp_path)


def test_ranks_launched_under_nohup_survive_a_closed_terminal(launch):
    script = f"{STARTED}\nsleep 1"
    assert launch(script, signal.SIGHUP, ignored=signal.SIGHUP) == (0, "")


@pytest.mark.parametrize(
    ("elastic", "leads", "suspended", "end"),
    [
        (True, True, False, "stopped"),
        pytest.param(True, True, True, "stopped", marks=on_linux),
        (True, False, False, "survived"),
        (False, True, False, "survived"),
    ],
)
def test_only_a_rank_of_an_agent_ends_with_its_parent(
    start, tmp_path, elastic, leads, suspended, end
):
    process = start(launching.fork_orphan, elastic, leads, suspended)
    process.join(PATIENCE)
    wait_until((tmp_path / "end").exists)
    assert (tmp_path / "end").read_text() == end


@pytest.mark.slow
@on_linux
def test_ranks_whose_launcher_is_killed_save_and_end_even_if_suspended(
    start, tiny_document, tmp_path
):
    document = tiny_document(
        training={"steps": 10**6, "workers": 1, "timeout": 60},
        checkpoints={"every": 0},
        logging={"every": 1},
    )
    (tmp_path / "run.json").write_text(json.dumps(document))
    run = RunFolder(tmp_path / "run")
    mark = f"DML_TEST_MARK={tmp_path}"
    command = shlex.join(tiny_run.command(tmp_path / "run.json", run.path))
    script = f"export {shlex.quote(mark)}\ncd {shlex.quote(str(tiny_run.FOLDER))}\nexec {command}"
    process = start(launching.launch_script, script, 60)
    wait_until(lambda: run.metrics.exists() and run.metrics.stat().st_size)
    processes = launching.list_marked(mark)
    assert len(processes) >= 4  # 2 ranks, and a loader process per rank
    for suspended in set(processes) & set(launching.list_marked("RANK=1")):  # rank 1 and its loader
        os.kill(suspended, signal.SIGSTOP)
    process.kill()
    wait_until(lambda: not launching.list_marked(mark))
    assert "RunInterrupted: stopped by SIGTERM after step" in (tmp_path / "errors").read_text()
    last = json.loads(run.metrics.read_text().splitlines()[-1])["step"]
    assert checkpoint.newest_intact(run.checkpoints).step == last > 0
    with run.lock():  # it can be resumed
        pass
