"""A node of a Ray cluster whose Ray gives up while it starts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.run.files import ray_folder
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes.environ_bytes import original_environment
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
    monkeypatch: pytest.MonkeyPatch,
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
