"""What this version says to agents of earlier ones, which other users and other nodes may have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node import run_lock
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link.messages import told_ending
from clusterctl.node.supervisor.control_socket import ControlSocket
from clusterctl.node.supervisor.shutdown import Cause
from tests.skew.earlier import VERSIONS, Earlier

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in VERSIONS.iterdir())
LIVE_RUN = """
import hashlib, json, os, sys  # before the folders of these can be entered no longer
sys.path.insert(0, sys.argv[1])
from clusterctl.node import run_lock
os.setuid(65534)
print(json.dumps(run_lock.live_run(os.fsencode(sys.argv[3]), sys.argv[2])))
"""
PARSE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from clusterctl.node.peer_link import messages
from clusterctl.node.supervisor.shutdown import Cause
parse = getattr(messages, "parse_ending", None) or messages.ending_in
cause = Cause.read(parse(json.loads(sys.argv[2])))
print(json.dumps([cause.by, cause.reason, cause.node, cause.rank, cause.grace]))
"""


@pytest.fixture(params=NAMES)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The sources of each version that is kept."""
    return Earlier.unpack(request.param, tmp_path / "earlier").folder


def said(program: str, *words: str) -> Any:
    argv = [sys.executable, "-I", "-S", "-c", program, *words]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_run_holds_up_no_other_users_sync_elsewhere(earlier: Path, tmp_path: Path) -> None:
    machine, loop, over = f"clusterctl-run-{uuid.uuid4().hex}", EventLoop(), threading.Event()
    identity = run_lock.workdir_id(os.fsencode(tmp_path / "ours"))
    who = {"run": "lab-1", "user": "ada", "since": 1.0, "holds": [], "workdir_id": identity}
    lock = ControlSocket(machine)

    def serve() -> None:
        lock.serve(loop, {**who, "workdir": str(tmp_path / "ours")}, lambda _request, _peer: {})
        while not over.is_set():
            loop.call_later(0.02, lambda: None)
            loop.run_once()
        lock.release()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert said(LIVE_RUN, str(earlier), machine, str(tmp_path / "theirs")) is None
        this = str(Path(run_lock.__file__).parents[2])
        assert said(LIVE_RUN, this, machine, str(tmp_path / "theirs")) is None
        assert said(LIVE_RUN, this, machine, str(tmp_path / "ours"))["run"] == "lab-1"
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("grace", [None, 0.0, 7.0])
def test_an_ending_is_understood(earlier: Path, grace: float | None) -> None:
    cause = Cause(by="rank", reason="rank 3 failed", node="w", rank=3, grace=grace)
    by, reason, node, rank, heard = said(
        PARSE, str(earlier), json.dumps(told_ending(cause._asdict()))
    )
    assert (by, reason, node, rank) == ("rank", "rank 3 failed", "w", 3)
    assert grace is None or heard == grace
