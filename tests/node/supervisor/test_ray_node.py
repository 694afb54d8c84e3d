"""A node of a Ray cluster whose Ray gives up while it starts."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.node.run.files import ray_folder
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.environ_bytes import original_environment
from clusterctl.node.supervisor.ending import Ending
from clusterctl.node.supervisor.ranks import ray_node
from clusterctl.node.supervisor.ranks.ray_node import STARTS, RayNode

RAY = """
import pathlib, sys
tries = pathlib.Path(sys.argv[1])
with tries.open("a") as file:
    file.write("x")
if len(tries.read_text()) < int(sys.argv[2]):
    sys.exit("Exception: " + sys.argv[3])
sys.exit(3)
"""
SLOW = "The current node timed out during startup."
HEADLESS = "No node info found for head node in GCS."


@pytest.mark.parametrize(
    ("words", "starts_at", "started", "code"),
    [(SLOW, 3, 3, 3), (HEADLESS, 2, 2, 3), (SLOW, 99, STARTS, 1), ("no such option", 3, 1, 1)],
)
def test_a_ray_that_gave_up_is_started_again(
    words: str, starts_at: int, started: int, code: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(ray_folder, "make", lambda folder: f"{folder}/ray")
    (tmp_path / "ray").mkdir()
    tries = tmp_path / "tries"
    with socket.create_server(("127.0.0.1", 0)) as head:
        address, port = head.getsockname()
        job: Any = {
            "address": address,
            "master": {"address": address, "port": port},
            "launcher_argv": [sys.executable, "-c", RAY, str(tries), str(starts_at), words],
        }
        node = RayNode(NodePaths(str(tmp_path)), job, original_environment())
        assert node.serve() == code
    assert len(tries.read_text()) == started
    why = "" if code == 3 else f": Exception: {words}"  # 3: it printed nothing
    assert f"clusterctl: Ray ended on this node{why}\n" in capfd.readouterr().out


HEAD = """
import pathlib, socket, sys, time
tries = pathlib.Path(sys.argv[1])
with tries.open("a") as file:
    file.write("x")
with socket.create_server(("127.0.0.1", int(sys.argv[2]))):
    if len(tries.read_text()) < 3:
        time.sleep(0.2)
        sys.exit("Exception: The current node timed out during startup.")
    print("up", flush=True)
    time.sleep(60)
"""
LISTED = """
import pathlib
__version__ = "2"
def init(**words): pass
def nodes():
    up = len(pathlib.Path(%r).read_text()) == 3
    node = {"NodeName": "gpu1", "NodeManagerAddress": "", "Resources": {}, "Alive": True}
    return [node] if up else []
"""


def test_a_head_that_gave_up_is_started_again_before_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_folder, "make", lambda folder: f"{folder}/ray")
    (tmp_path / "ray").mkdir()
    tries = tmp_path / "tries"
    (tmp_path / "ray.py").write_text(LISTED % str(tries))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    job: Any = {
        "address": "127.0.0.1",
        "master": {"node": "gpu1", "address": "127.0.0.1", "port": port},
        "workers": [],
        "launcher_argv": [sys.executable, "-c", HEAD, str(tries), str(port)],
    }
    environment = {
        **original_environment(),
        b"RAY_ADDRESS": b"127.0.0.1:%d" % port,
        b"PYTHONPATH": bytes(tmp_path),
    }
    node = RayNode(NodePaths(str(tmp_path)), job, environment)
    monkeypatch.setattr(node, "_run_driver", lambda ray: 7 if ray.poll() is None else 8)
    try:
        assert node.lead() == 7
    finally:
        node.end()
    assert len(tries.read_text()) == 3


def test_a_ray_that_ends_before_the_driver_is_the_first_to_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor takes the first end that it sees for the cause: ours, then the driver's."""
    monkeypatch.setattr(ray_node, "shim_argv", lambda *_: [])
    (tmp_path / "ray").mkdir()
    job: Any = {
        "address": "127.0.0.1",
        "master": {"node": "gpu1", "address": "127.0.0.1", "port": 1},
        "wrap": [],
        "argv": [sys.executable, "-c", "import time; time.sleep(600)"],
        "launcher_argv": [sys.executable, "-c", "import time; time.sleep(1); exit(1)"],
    }
    node = RayNode(NodePaths(str(tmp_path)), job, original_environment())
    assert node._run_driver(node._start_ray(str(tmp_path))) == 1
    (driver,) = [child for child in node._children if "600" in str(child.args)]
    try:
        node.end()
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.parametrize("drivers", [0, 1, 2])
def test_a_driver_that_does_without_the_runs_ray_is_told_of(
    drivers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_node, "shim_argv", lambda *_: [])
    monkeypatch.setattr(ray_node, "UNUSED_SECONDS", 0.2)
    logs = tmp_path / "ray/session_latest/logs"
    logs.mkdir(parents=True)
    for number in range(drivers):
        (logs / f"python-core-driver-0{number}_7.log").touch()
    job: Any = {
        "address": "127.0.0.1",
        "master": {"node": "gpu1", "address": "127.0.0.1", "port": 1},
        "workers": ["gpu2"],
        "wrap": [],
        "argv": [sys.executable, "-c", "import time; time.sleep(1)"],
        "launcher_argv": [sys.executable, "-c", "import time; time.sleep(600)"],
    }
    node = RayNode(NodePaths(str(tmp_path)), job, original_environment())
    try:
        assert node._run_driver(node._start_ray(str(tmp_path))) == 0
    finally:
        node.end()
    printed, alone = capfd.readouterr().out, drivers == 1
    so_far = "has not connected to this run's Ray: so far it runs on gpu1 alone"
    assert (so_far in printed) == alone
    assert ("never connected to this run's Ray: it ran on gpu1 alone" in printed) == alone


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", raises(OSError(30, "Read-only file system", "/tmp/x")))
    job: Any = {"master": {"node": "gpu1", "address": "127.0.0.1", "port": 1}}
    node = RayNode(NodePaths(str(tmp_path)), job, original_environment())
    with pytest.raises(SystemExit) as ended:
        node.serve()
    assert ended.value.code == 1
    words = "Ray's folder cannot be made: [Errno 30] Read-only file system: '/tmp/x'"
    assert capfd.readouterr().out == f"clusterctl: {words}\n"


def raises(error: OSError) -> Callable[..., None]:
    """Return a function that raises the error."""

    def fail(**_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("launcher", "named"), [("ray", ["sleep 9"]), ("direct", ["ray::IDLE", "sleep 9"])]
)
def test_what_ray_itself_leaves_behind_for_a_moment_is_not_of_the_driver(
    launcher: str, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {1: "ray::IDLE", 2: "sleep 9"}
    monkeypatch.setattr(processes, "command_of", commands.__getitem__)
    events: list[Any] = []
    record = SimpleNamespace(event=lambda _, **about: events.append(about["commands"]))
    one: Any = SimpleNamespace(_job={"launcher": launcher}, _record=record)
    left: list[Any] = [SimpleNamespace(pid=pid) for pid in commands]
    Ending._leftovers(one, left)
    assert events == [named]
