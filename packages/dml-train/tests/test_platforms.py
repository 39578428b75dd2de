"""The package can be imported and can lock folders without fcntl, fork and signal masks, as on
Windows.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

# Other packages are imported first, since this only tests how dml_train uses functions that Windows
# lacks.
IMPORT_WITHOUT_POSIX = """
import fcntl, importlib, multiprocessing.context, os, pkgutil, signal, sys, types
from pathlib import Path

import dml_train

names = [module.name for module in pkgutil.walk_packages(dml_train.__path__, "dml_train.")]
names = [name for name in names if not name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.split(".")[0] == "dml_train"]:
    del sys.modules[name]

def locking(descriptor, mode, size):  # as msvcrt's: one byte from the file's position
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, size)
        # lockf lets the same process lock twice
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(13, "Permission denied") from error

msvcrt = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
sys.modules |= {"fcntl": None, "resource": None, "msvcrt": msvcrt}
for module, missing in (
    (signal, ("SIGHUP", "SIGKILL", "pthread_sigmask", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK")),
    (os, ("fork", "killpg", "setsid")),
    (multiprocessing.context, ("ForkContext", "ForkServerContext", "ForkServerProcess")),
):
    for name in missing:
        delattr(module, name)
sys.platform = "win32"
for name in names:
    importlib.import_module(name)

from dml_core import DmlError
from dml_train.files import lock_folder

folder = Path(sys.argv[1])
with lock_folder(folder, "training"):
    try:
        with lock_folder(folder, "training"):
            raise AssertionError("locked twice")
    except DmlError as error:
        print(error)
with lock_folder(folder, "training"):
    print(len(names) > 100, [path.name for path in folder.parent.iterdir()])
"""


@pytest.mark.slow
def test_the_package_imports_and_locks_without_posix(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_POSIX, str(folder)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    message, rest = done.stdout.splitlines()
    assert message == "another process is training; wait for it, or stop it first"
    assert rest == "True ['run', '.run.lock']" or rest == "True ['.run.lock', 'run']"
