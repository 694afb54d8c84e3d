"""Fixtures for every room: sandboxes of real sshd hosts."""

from __future__ import annotations

import os
import re
import signal
import tracemalloc  # noqa: F401  (pytest imports it while a leak is reported: two at once collide)
from collections.abc import Iterator
from itertools import count
from typing import Protocol

import psutil
import pytest
from hypothesis import HealthCheck, settings

from clusterctl.sandbox import netns, sandbox
from clusterctl.sandbox.gpus import NONE as NO_GPUS
from clusterctl.sandbox.gpus import Gpus
from clusterctl.sandbox.layout import BackendName
from clusterctl.sandbox.sandbox import Sandbox


class MakeSandbox(Protocol):
    """Starts a sandbox that ends with the test."""

    def __call__(
        self,
        *,
        nodes: int = 3,
        backend: BackendName = "netns",
        gpus: Gpus = NO_GPUS,
        shells: tuple[str, ...] = ("bash",),
    ) -> Sandbox: ...


# Examples are limited by number, never by time: a busy machine must not fail a test.
settings.register_profile(
    "clusterctl", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("clusterctl")

_numbers = count(1)
_OF_A_TEST = re.compile(r"t(\d+)-\d+")


def pytest_sessionstart() -> None:
    """Take down what test processes left that were killed; let SIGINT mean something."""
    # A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in sandbox.names():
        found = _OF_A_TEST.fullmatch(name)
        if found and not psutil.pid_exists(int(found[1])):
            sandbox.remove(name)


def _start(
    *,
    nodes: int = 3,
    backend: BackendName = "netns",
    gpus: Gpus = NO_GPUS,
    shells: tuple[str, ...] = ("bash",),
) -> Sandbox:
    """Start a sandbox under a name that no other test process uses."""
    if backend == "netns" and (why := netns.missing()):
        pytest.skip(f"no network namespaces here: {why}")
    name = f"t{os.getpid()}-{next(_numbers)}"
    return sandbox.up(name, nodes=nodes, backend=backend, gpus=gpus, shells=shells)


@pytest.fixture(scope="session")
def sandbox3() -> Iterator[Sandbox]:
    """Three healthy hosts, shared by a test process; tests of faults make hosts of their own."""
    started = _start()
    yield started
    started.down()


@pytest.fixture
def make_sandbox() -> Iterator[MakeSandbox]:
    """Start sandboxes of a test's own, which end with it."""
    started: list[Sandbox] = []

    def make(
        *,
        nodes: int = 3,
        backend: BackendName = "netns",
        gpus: Gpus = NO_GPUS,
        shells: tuple[str, ...] = ("bash",),
    ) -> Sandbox:
        started.append(_start(nodes=nodes, backend=backend, gpus=gpus, shells=shells))
        return started[-1]

    yield make
    for box in started:
        box.down()
