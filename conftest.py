"""Conditions for the tests of all packages: hypothesis examples, torch's random numbers, and a
plain terminal.

Examples are identical on all machines, however slow, so that tests fail only after a change. To
draw more examples, use ``pytest --hypothesis-profile=ci``, as ``make test-all`` does. To draw new
ones, use ``pytest --hypothesis-profile=search``, which also saves failing examples in
``.hypothesis/``.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from multiprocessing import forkserver

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

settings.register_profile(
    "search",
    settings.get_profile("ci"),
    derandomize=False,
    max_examples=1000,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=25)
settings.load_profile("quick")
# CI sets some of these variables, which change the printed text.
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR", "COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# Ranks and loaders need these modules within seconds; optimizers import torch._dynamo in the first
# step.
_IMPORTED_FOR_FORKS = [
    "torch._dynamo",
    "torchvision.transforms.v2",
    "dml_losses",
    "dml_train.training.run",
    "dml_train.ranks.launch",
    "dml_train.processes.loader_server",
]


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """Choose the imports of this process's fork server, so that ranks and loaders don't import
    everything again.

    A process uses a single server: the first user chooses the imports. Tests of the trainer start
    it at once.
    """
    imported = [name for name in _IMPORTED_FOR_FORKS if name.partition(".")[0] in sys.modules]
    forkserver.set_forkserver_preload(imported)
    if "dml_train" in sys.modules:
        forkserver.ensure_running()


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Run a test on all devices of this machine."""
    if request.param == "cuda" and not import_module("torch").cuda.is_available():
        pytest.skip("needs a CUDA device; the CPU does the same")
    return str(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run nightly tests only in a search."""
    if config.getoption("hypothesis_profile", None) != "search":
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
        if nightly:
            config.hook.pytest_deselected(items=nightly)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the evaluator's paths and options, and the kernels that were tested or not."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    for report in reports:
        for name, text in getattr(report, "user_properties", ()):
            if name == "matrix":
                terminalreporter.write_line(text)
    if any("dml-eval-rs" in getattr(report, "nodeid", "") for report in reports):
        native = import_module("dml_eval_rs._native")
        terminalreporter.write_line(f"kernels tested on this CPU: {', '.join(native.kernels())}")
        if missing := native.missing_kernels():
            terminalreporter.write_line(
                f"kernels NOT tested, which this CPU lacks: {', '.join(missing)}", yellow=True
            )


def pytest_runtest_setup() -> None:
    """Seed torch, so that draws don't depend on earlier tests, and use a single thread.

    Multiple threads are slower for such small tensors and sum in a different order.
    """
    if (torch := sys.modules.get("torch")) is not None:  # the evaluator's tests run without torch
        torch.manual_seed(0)
        torch.set_num_threads(1)
