"""A pytest plugin: what the mark `gpu` means. It needs only pytest.

`make gpu` loads it without the conftests above the tests, which import what a GPU machine lacks.

A process that has asked the CUDA driver anything cannot fork children that use CUDA. So the
question for a GPU is asked in a process of its own, and no test may ask in pytest's.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import warnings

import pytest

from tests.required import REQUIRED, is_required

_ASK = "import sys, torch; sys.exit(not torch.cuda.is_available())"
_ASK_SECONDS = 120


@functools.cache
def has_gpu() -> bool:
    """Tell whether torch sees a GPU, without importing it here."""
    if shutil.which("nvidia-smi") is None:
        return False
    asked = subprocess.run([sys.executable, "-c", _ASK], timeout=_ASK_SECONDS, check=False)
    return asked.returncode == 0


def forks_may_use_cuda() -> bool:
    """Tell whether a child that this process forks could use CUDA: ask one."""
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's threads: the child needs none
        child = os.fork()
    if not child:
        os._exit(bool(torch.cuda._is_in_bad_fork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of a GPU on a machine without one; fail them if a GPU is required."""
    if item.get_closest_marker("gpu") and not has_gpu():
        why = "needs an NVIDIA GPU that torch can use, found none"
        if is_required("gpu"):
            pytest.fail(f"{why} ({REQUIRED} requires one)", pytrace=False)
        pytest.skip(why)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fail a test that used CUDA in this process: later tests fork children that need it."""
    if item.get_closest_marker("gpu") and not forks_may_use_cuda():
        why = "this test started CUDA in pytest's process, where later tests fork"
        pytest.fail(f"{why} (hint: `on_device` of tests/train/conftest.py)", pytrace=False)
