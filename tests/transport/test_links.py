"""Links that are cut and hosts that freeze in the middle of a call, between real hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns

LIMIT_SECONDS = 30.0
"""The keepalive takes 8 s, the silence of the heartbeat 10 s; the rest is a busy machine."""

ROOT = Path(__file__).parents[2]

FOLLOW = """\
import json, sys, time
from pathlib import Path
from clusterctl.inventory import load
from clusterctl.transport.interface import Request
from clusterctl.transport.pool import Pool

cluster = load(Path(sys.argv[1]))
with Pool(cluster) as pool:
    calls = {n.name: pool.start(n.name, Request(op="echo", args={})) for n in cluster.nodes}
    streams = {name: call.messages() for name, call in calls.items()}
    for stream in streams.values():
        next(stream)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    rest = list(streams["node2"])
    seconds = time.monotonic() - began
    calls["node1"].send(__import__("clusterctl.wire", fromlist=["Message"]).Message({"last": True}))
    list(streams["node1"])
    print(json.dumps([calls["node2"].reply().state, seconds, calls["node1"].reply().state]))
"""


@pytest.mark.parametrize(("kind", "state"), [("link-down", "lost"), ("frozen", "timeout")])
def test_it_is_known_within_seconds(make_sandbox: MakeSandbox, kind: str, state: str) -> None:
    box = make_sandbox(nodes=2)
    process = subprocess.Popen(
        box.command([sys.executable, "-c", FOLLOW, str(box.inventory)], cwd=ROOT),
        env=box.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        box.fault("node2", kind)
        process.stdin.write("\n")
        process.stdin.flush()
        told, seconds, other = json.loads(process.stdout.readline())
    assert told == state
    assert seconds < LIMIT_SECONDS
    assert other == "ok"
