"""Fixtures for every room: sandboxes of real sshd hosts."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tracemalloc  # noqa: F401  (pytest imports it while a leak is reported: two at once collide)
from collections.abc import Iterator
from itertools import count
from typing import Protocol, TypedDict

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from typing_extensions import Unpack

from clusterctl.sandbox import netns, sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.gpus import Gpus
from clusterctl.sandbox.layout import BackendName, Ip
from clusterctl.sandbox.sandbox import Sandbox
from tests.required import REQUIRED, is_required
from tests.warm_sandbox import WarmSandbox


class Wanted(TypedDict, total=False):
    """The fields of `SandboxSpec`."""

    nodes: int
    gpus: Gpus
    shells: tuple[str, ...]
    users: tuple[str, ...]
    ip: Ip
    jumps: int


class MakeSandbox(Protocol):
    """Starts a sandbox that ends with the test."""

    def __call__(self, *, backend: BackendName = "netns", **wanted: Unpack[Wanted]) -> Sandbox: ...


# Examples are limited by number, never by time: a busy machine must not fail a test.
# `make test` plays the same examples every time; `make soak` searches for new ones.
settings.register_profile(
    "clusterctl",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "soak",
    settings.get_profile("clusterctl"),
    derandomize=False,
    max_examples=5000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("clusterctl")  # `--hypothesis-profile soak` loads the other


def pytest_configure(config: pytest.Config) -> None:
    """Have hypothesis read no source files for numbers and words to try, unless it searches.

    For that, each process would parse every module first: half of the start of a few tests. And an
    example would be another one after a change anywhere.
    """
    if config.getoption("hypothesis_profile") != "soak":
        providers._get_local_constants = lambda: providers._local_constants


pytest_plugins = ["tests.gpu_marker", "tests.leftovers", "tests.sshd_servers"]

LONGEST = (
    "tests/cli/test_training_over_hosts.py",
    "tests/train/tools/test_smoke.py::test_the_toy_has",
    "tests/cli/test_open_ports.py",
    "tests/cli/test_spares.py",
    "tests/cli/test_hang.py",
    "tests/cli/test_quarantine.py::test_a_node_that_was_lost",
    "tests/cli/test_unverified.py",
    "tests/chaos/test_chaos.py::test_schedules_of_faults",
    "tests/cli/test_push.py::test_an_interrupted_push",
    "tests/cli/test_other_hosts.py",
    "tests/train/observe/test_slow_rank.py::test_a_slowed_rank",
    "tests/cli/test_setup.py::test_it_is_made_once",
    "tests/cli/test_json.py::test_verbs_print_what_the_schema_says",
    "tests/cli/test_sharing.py",
    "tests/cli/test_init_connects.py::test_three_commands",
    "tests/cli/test_sync.py::test_launch_resume_and_sync",
    "tests/cli/test_resume.py::test_resume_from_the_latest",
    "tests/cli/test_launch.py::test_busy_nodes",
    "tests/test_api.py::test_the_examples_of_the_page",
)
"""The tests that take longest, by `make test`, longest first.

Those of Ray are left out: it gives each of its processes 30 s to start, and these are all busy.
"""
TRAININGS = (
    "tests/train/",
    "tests/strict_nccl/",
    "tests/cli/test_training_over_hosts.py",
    "tests/node/checkpoints/test_formats.py",
    "tests/node/probe/test_gpu_trial.py",
    "tests/node/probe/test_job_",
)
"""Most of their tests use torch in the test process, or ranks forked from one that has it."""
TOGETHER = ("tests/checks/", "tests/test_site.py")
"""What one worker should have: to read the rules' fixtures takes 8 s of CPU time, the site 6."""
WORKERS_LIMIT = 16

IMPORTED = pytest.StashKey[frozenset[str]]()
"""The modules that collecting the tests imported."""

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


def pytest_xdist_auto_num_workers() -> int:
    """Start two workers a core: most tests wait for other processes."""
    return min(2 * (os.cpu_count() or 1), WORKERS_LIMIT)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note what collecting has imported; the tests themselves will import more."""
    session.config.stash[IMPORTED] = frozenset(sys.modules)
    # A full collection looks at every test and module, and importing torch starts a dozen.
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


@pytest.hookimpl(trylast=True)  # after the shuffle
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the longest tests out: each worker starts with its share, so that none ends the run.

    `--dist worksteal` gives each worker one piece of the list, all of about the same length.
    Trainings go to half of the workers, until others have nothing else to do: torch and the process
    that ranks are forked from take each of them 15 s of CPU time to start.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    longest = sorted(
        (item for item in items if item.nodeid.startswith(LONGEST)),
        key=lambda item: [item.nodeid.startswith(each) for each in LONGEST].index(True),
    )
    taken = {id(item) for item in longest}
    others = [item for item in items if id(item) not in taken]
    others.sort(key=lambda item: not item.nodeid.startswith(TOGETHER))
    trainings = [item for item in longest + others if item.nodeid.startswith(TRAININGS)]
    if workers == 1 or 2 * len(trainings) > len(items):  # each worker trains
        trainings = []
    apart = {id(item) for item in trainings}
    longest = [item for item in longest if id(item) not in apart]
    others = [item for item in others if id(item) not in apart]
    share = -(-len(trainings) // -(-workers // 2))
    dealt: list[pytest.Item] = []
    for worker in range(workers):
        piece = longest[worker::workers] + trainings[worker * share : (worker + 1) * share]
        length = (len(items) - len(dealt)) // (workers - worker)
        cut = max(0, length - len(piece))
        dealt += piece + others[:cut]
        del others[:cut]
    items[:] = dealt + others


def need_netns() -> None:
    """Skip a test where there are no network namespaces; fail it where they are demanded."""
    if why := netns.missing():
        told = f"no network namespaces here: {why}"
        if is_required("netns"):
            pytest.fail(f"{told} ({REQUIRED} requires them)", pytrace=False)
        pytest.skip(told)


def _start(*, backend: BackendName = "netns", **wanted: Unpack[Wanted]) -> Sandbox:
    """Start a sandbox under a name that no other test process uses."""
    if backend == "netns":
        need_netns()
    name = f"t{os.getpid()}-{next(_numbers)}"
    return WarmSandbox.of(sandbox.up(name, SandboxSpec(**wanted), backend=backend))


@pytest.fixture(scope="session")
def sandbox3() -> Iterator[Sandbox]:
    """Three healthy hosts, shared by a test process; a test that gives them a fault heals it."""
    started = _start()
    yield started
    started.down()


@pytest.fixture
def make_sandbox() -> Iterator[MakeSandbox]:
    """Start sandboxes of a test's own, which end with it."""
    started: list[Sandbox] = []

    def make(*, backend: BackendName = "netns", **wanted: Unpack[Wanted]) -> Sandbox:
        started.append(_start(backend=backend, **wanted))
        return started[-1]

    yield make
    for box in started:
        box.down()


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep no digests in the cache of the person who runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
