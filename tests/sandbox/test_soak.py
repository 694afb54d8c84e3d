"""A sandbox may be killed at any moment of its start, and `down` still leaves nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

from clusterctl.sandbox import processes, sandbox
from clusterctl.sandbox.layout import BackendName, Layout
from tests.conftest import need_netns

ROUNDS = 200


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["netns", "loopback"])
def test_killed_starts_leave_nothing_after_down(backend: BackendName) -> None:
    if backend == "netns":
        need_netns()
    name = f"k{os.getpid()}"
    argv = [sys.executable, "-m", "clusterctl", "sandbox", "up", "--name", name]
    argv += ["--backend", backend]
    root, chance = Layout.of(name).root, random.Random(backend)
    for _ in range(ROUNDS):
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
            time.sleep(chance.uniform(0.05, 0.5))
            up.kill()
        sandbox.remove(name)
        assert not processes.stamped(root)
        assert not root.exists()
