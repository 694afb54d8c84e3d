"""The promise: this version works with runs of earlier ones, and they with its runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.runs import checkpoint
from tests.conftest import _start
from tests.installed import LOCATION
from tests.skew.earlier import NODES, STATE, VERSIONS, WORKDIR, Earlier, inventory, on_node
from tests.skew.make_fixture import check_out
from tests.waiting import BUSY, wait_until

pytestmark = pytest.mark.netns
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in VERSIONS.iterdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A version of clusterctl on the controller's side."""

    box: Sandbox
    folder: Path
    source: Path = LOCATION

    @property
    def state(self) -> Path:
        """Where it keeps its records."""
        return self.folder / "state"

    def call(self, *words: str, code: int = 0) -> str:
        """Run a verb that ends with this exit code; return what it prints."""
        env = {
            "PYTHONPATH": str(self.source),
            "CLUSTERCTL_STATE": str(self.state),
            "CLUSTERCTL_INVENTORY": str(self.folder / "hosts.yaml"),
        }
        argv = [sys.executable, "-m", "clusterctl", *words]
        done = self.box.run(argv, env=env, cwd=self.folder / "project", timeout=BUSY)
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def status(self, run: str) -> dict[str, Any]:
        """Return `status --json`."""
        document: dict[str, Any] = json.loads(self.call("status", "--json", run))
        return document

    def wait_until_up(self, run: str, word: str = "") -> None:
        """Wait until the job has begun on every node."""
        lines = [f"up {rank} {word}".strip() for rank in range(len(NODES))]
        wait_until(lambda: set(lines) <= {one.strip() for one in self.log(run)})

    def log(self, run: str) -> list[str]:
        """Return the lines that the ranks printed."""
        return self.call("logs", "--raw", run).splitlines()


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Two hosts, for all versions."""
    started = _start(nodes=len(NODES))
    for node in NODES:
        on_node(started, node, ["mkdir", "-p", f"{WORKDIR}/out"])
    yield started
    started.down()


@pytest.fixture
def controller(box: Sandbox, tmp_path: Path) -> Iterator[Controller]:
    """The version under test; afterwards nothing of the runs is left on the nodes."""
    (tmp_path / "hosts.yaml").write_text(inventory(box))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README").write_text("a job's code\n")
    made = Controller(box=box, folder=tmp_path)
    yield made
    if living(box):
        made.call("stop", "--all", "--grace", "0")
    for node in NODES:
        on_node(box, node, ["rm", "-rf", STATE, f"{WORKDIR}/out"])


# The first differs most.
@pytest.fixture(
    params=[NAMES[0], *(pytest.param(name, marks=pytest.mark.soak) for name in NAMES[1:])]
)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Earlier:
    """Each version that is kept."""
    return Earlier.unpack(request.param, tmp_path / "earlier")


def test_a_run_of_an_earlier_version_that_is_over_can_be_read(
    controller: Controller, earlier: Earlier, tmp_path: Path
) -> None:
    earlier.place(controller.box)
    run = earlier.run
    listed = json.loads(controller.call("runs", "--discover", "--json"))["runs"]
    assert [(one["run"], one["state"], one["ended_by"]) for one in listed] == [
        (run, "stopped", "stop")
    ]
    status = controller.status(run)
    assert (status["state"], status["ended_by"]) == ("stopped", "stop")
    assert [node["state"] for node in status["nodes"]] == ["stopped"] * 2
    assert [(one["rank"], one["exit_code"]) for one in status["ranks"]] == [(0, 0), (1, 0)]
    assert sorted(controller.log(run)) == ["saved", "saved", "up 0", "up 1"]
    told = controller.call("top", "--once", "--json", run, code=1)
    assert "was started by an earlier version" in told
    controller.call("logs", run, "--collect", str(tmp_path / "logs"))
    found = {path.name: path.read_text() for path in (tmp_path / "logs").rglob("ranks/*.log")}
    assert found == {"0.log": "up 0\nsaved\n", "1.log": "up 1\nsaved\n"}


def test_a_run_of_an_earlier_version_is_followed_stopped_and_resumed_and_its_agent_answers(
    controller: Controller, earlier: Earlier, tmp_path: Path
) -> None:
    box, run = controller.box, earlier.run
    earlier.record(controller.state)
    earlier.start(box)
    controller.wait_until_up(run)
    status = controller.status(run)
    assert status["state"] == "running"
    assert [rank["state"] for rank in status["ranks"]] == ["running"] * 2
    listed = json.loads(controller.call("runs", "--json"))["runs"]
    assert [(one["run"], one["state"]) for one in listed] == [(run, "running")]
    controller.call("logs", run, "--collect", str(tmp_path / "logs"))
    found = {path.name: path.read_text() for path in (tmp_path / "logs").rglob("ranks/*.log")}
    assert found == {"0.log": "up 0\n", "1.log": "up 1\n"}

    assert len(living(box)) == len(NODES)
    (refused,) = json.loads(controller.call("join", run, "--nodes", NODES[1], "--json", code=1))[
        "nodes"
    ]
    assert (refused["node"], refused["state"]) == (NODES[1], "refused")
    assert "elastic" in refused["message"] or "earlier version" in refused["message"]
    assert refused["hint"].startswith(f"clusterctl stop {run} && clusterctl resume {run} ")
    assert len(living(box)) == len(NODES)
    controller.call("stop", run)
    status = controller.status(run)
    assert (status["state"], status["ended_by"]) == ("stopped", "stop")
    assert sorted(controller.log(run)) == ["saved", "saved", "up 0", "up 1"]
    assert not living(box)

    made = checkpoint(tmp_path / "out", 7, run)
    for node in NODES:
        place = f"{WORKDIR}/out/{made.name}"
        on_node(box, node, ["mkdir", "-p", place])
        for file in made.iterdir():
            on_node(box, node, ["sh", "-c", f"cat > {place}/{file.name}"], file.read_bytes())
    words = ("resume", run, "--checkpoint", "latest", "--no-check", "--detach")
    resumed = controller.call(*words).strip()
    controller.wait_until_up(resumed, f"{WORKDIR}/out/{made.name}")
    assert controller.status(resumed)["state"] == "running"

    # The resumed run is of this version: an earlier agent answers for it.
    node = NODES[0]
    status = earlier.ask_about(box, node, "status", resumed)["node"]
    assert (status["state"], status["run"]) == ("running", resumed)
    assert [rank["state"] for rank in status["ranks"]] == ["running"]
    tailed = earlier.ask_about(box, node, "tail", resumed, **{"from": {}})["node"]
    assert tailed["state"] == "running"
    assert all(earlier.ask_about(box, each, "stop", resumed)["gone"] for each in reversed(NODES))
    assert controller.status(resumed)["ended_by"] == "stop"
    assert not living(box)


@pytest.mark.soak
def test_an_earlier_controller_works_with_a_run_of_this_version(
    controller: Controller, earlier: Earlier, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    commit = request.node.callspec.params["earlier"].rpartition("-")[2]
    try:
        check_out(commit, ("clusterctl",), tmp_path / "source")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this checkout lacks {commit}: {error.stderr.decode().strip()}")
    old = Controller(box=controller.box, folder=controller.folder, source=tmp_path / "source")
    run = controller.call("launch", "--no-check", "--detach").strip()
    old.wait_until_up(run)
    assert old.status(run)["state"] == "running"
    assert [one["run"] for one in json.loads(old.call("runs", "--json"))["runs"]] == [run]
    old.call("stop", run)
    assert (old.status(run)["state"], old.status(run)["ended_by"]) == ("stopped", "stop")
    assert not living(controller.box)
    (tmp_path / "state").rename(tmp_path / "lost")
    old.call("runs", "--discover")
    assert sorted(old.log(run)) == ["saved", "saved", "up 0", "up 1"]


def living(box: Sandbox) -> list[str]:
    """Return what runs on the nodes of the job."""
    look = ["ps", "axwwo", "args"]
    lines = [line for node in NODES for line in on_node(box, node, look).decode().splitlines()]
    return [line for line in lines if "import os, signal, sys" in line]
