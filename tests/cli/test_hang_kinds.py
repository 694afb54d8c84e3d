"""Every way to stand still gets its name in a real run, and none that only looks like it does.

A soak. Each hang prints a row: seconds from the moment at which the last rank stood, to the state
and to the verdict of `launch`, with `hang.after: 10s`. Swap is not played: it takes a machine that
has some. Different shapes end a run of gloo at once, which is asserted instead.

CLUSTERCTL_SOAK_SECONDS is how long healthy jobs are mixed, an hour by default, from
CLUSTERCTL_SOAK_SEED on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.conftest import MakeProject
from tests.cli.hang_kinds import (
    HANGS,
    HEALTHY,
    IN_SCRIPT,
    LAUNCHERS,
    Hang,
    Launch,
    cut,
    launch,
    line_of,
    mend,
    stood_since,
)
from tests.cli.runs import Project
from tests.conftest import _start

pytestmark = [pytest.mark.netns, pytest.mark.torch, pytest.mark.soak, pytest.mark.timeout(1800)]

NODES = 4
QUIET_SECONDS = 40.0
"""How long a healthy job prints nothing: four times `after`."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Sandbox]:
    """Four hosts."""
    started = _start(nodes=NODES)
    yield started
    started.down()


@pytest.fixture
def quiet_project(hosts: Sandbox, make_project: MakeProject) -> Project:
    """A project on them."""
    return make_project(hosts)


def is_verdict(document: dict[str, Any]) -> bool:
    return bool(document["kind"] == "verdict")


def is_event(document: dict[str, Any], kind: str) -> bool:
    return bool(document["kind"] == "event" and document["event"]["kind"] == kind)


def begin_to_hang(project: Project, hang: Hang, started: Launch) -> float | None:
    """Do what the program cannot do itself; return when it stands still, if that is known."""
    if hang.kind != "cut":
        return None
    assert started.read_until(lambda one: "step 3" in str(one))
    return cut(project, "node2", "node3")


def expected(hang: Hang) -> tuple[str, list[int], list[str]]:
    """Return the kind, the ranks and the nodes that are to be named."""
    rank = range(hang.nodes)[hang.rank]
    return hang.says, [rank], [f"node{rank + 1}"]


def check_verdict(hang: Hang, found: dict[str, Any]) -> None:
    """Compare a verdict with what is to be said."""
    told = (found["kind"], found["ranks"], found["nodes"])
    if hang.kind == "cut":
        assert (told[0], sorted(told[2])) == ("network", ["node2", "node3"]), found
        assert told[1] in ([1], [2]), found
        return
    assert told == expected(hang), found
    where = found["where"]
    place = (where["file"].rpartition("/")[2], where["line"])
    assert place == ("train.py", line_of(hang.kind)), found


@pytest.mark.parametrize("launcher", [*LAUNCHERS, "bash"])
@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.kind)
def test_a_hang_has_its_name(
    quiet_project: Project, hang: Hang, launcher: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project, script = quiet_project, launcher == "bash"
    if script and hang.kind not in {"sleep", "stop"}:
        pytest.skip("how the rank was started matters to these alone")
    last = f"node{hang.nodes}"
    if hang.says == "storage":
        project.sandbox.fault(last, "hung-mount", project.sandbox.host(last).workspace)
    started = launch(
        project, "direct" if script else launcher, hang.nodes, hang.kind, 0, script=script
    )
    try:
        cut_at = begin_to_hang(project, hang, started)
        said = started.read_until(is_verdict)
        seen = time.time()
        assert said, started.told[-3:]
        stood = cut_at or stood_since(project.placed, hang.nodes * (IN_SCRIPT if script else 1))
        hung = next(one["event"] for one in started.told if is_event(one, "hung"))
        with capsys.disabled():
            print(
                f"\n{hang.kind:8} {launcher:10} {hang.nodes} nodes: hung after"
                f" {hung['time'] - stood:5.1f} s, verdict after {seen - stood:5.1f} s,"
                f" load {os.getloadavg()[0]:.0f}: {said['verdict']['text']}",
                flush=True,
            )
        check_verdict(hang, said["verdict"])
        status = project.status(started.run)
        assert status["state"] == "hung"
        check_verdict(hang, status["verdict"])
        dump = json.loads(project.run("dump", started.run, "--json").stdout)
        check_verdict(hang, dump["verdict"])
    finally:
        mend(project, "node2")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_different_shapes_end_a_run_of_gloo_at_that_rank(
    quiet_project: Project, launcher: str
) -> None:
    started = launch(quiet_project, launcher, 3, "shape", 0)
    assert not started.read_until(lambda one: is_event(one, "hung"))
    assert started.process.wait() == 128 + signal.SIGABRT
    cause = quiet_project.status(started.run)["first_cause"]
    assert (cause["node"], cause["rank"]) == ("node3", 2), cause
    log = quiet_project.run("logs", started.run, "--raw", "--rank", "2").stdout
    assert f'train.py", line {line_of("shape")} in stands_still' in log


def play_healthy(
    project: Project, launcher: str, nodes: int, kind: str, seconds: float
) -> list[Any]:
    """Play a job that is well; return what it printed that should not be there."""
    script = launcher == "bash"
    started = launch(project, "direct" if script else launcher, nodes, kind, seconds, script=script)
    wrong = started.read_until(lambda one: is_event(one, "hung"))
    said = [wrong, started.read_until(is_verdict)] if wrong else []
    code = started.process.wait()
    return said if not code else [*said, code, started.told[-3:]]


@pytest.mark.parametrize("launcher", [*LAUNCHERS, "bash"])
@pytest.mark.parametrize(
    "kind", ["tokenize", "save", "script", "notebook", "file", "collectives", "loads"]
)
def test_what_only_looks_like_a_hang_is_none(
    quiet_project: Project, kind: str, launcher: str
) -> None:
    if launcher == "bash" and kind != "notebook":
        pytest.skip("how the rank was started matters to that alone")
    assert not play_healthy(quiet_project, launcher, 2, kind, QUIET_SECONDS)


@pytest.mark.timeout(0)
def test_healthy_jobs_give_no_false_alarm(
    quiet_project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(int(os.environ.get("CLUSTERCTL_SOAK_SEED", "0")))
    until = time.monotonic() + float(os.environ.get("CLUSTERCTL_SOAK_SECONDS", "3600"))
    wrong: dict[str, list[Any]] = {}
    played = 0
    while time.monotonic() < until:
        kind, launcher = chance.choice(HEALTHY), chance.choice(LAUNCHERS)
        nodes, seconds = chance.randint(2, NODES), round(chance.uniform(10, 60))
        played += 1
        if found := play_healthy(quiet_project, launcher, nodes, kind, seconds):
            wrong[f"{played}: {kind} {launcher} {nodes} nodes {seconds} s"] = found
    with capsys.disabled():
        print(f"\n{played} healthy jobs, {len(wrong)} of them called hung or failed", flush=True)
    assert not wrong
