"""Arguments and bodies reach the agent byte for byte, whatever the login shell and its rc files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeSandbox

SHELLS = ("dash+noise", "bash+noise", "zsh+noise", "fish+noise", "tcsh+noise")

SCRIPT = """\
import json, sys
from pathlib import Path
from clusterctl.inventory import load
from clusterctl.transport.interface import Request
from clusterctl.transport.pool import Pool

cluster = load(Path(sys.argv[1]))
args = json.loads(sys.argv[2])
with Pool(cluster) as pool:
    request = Request(op="hello", args=args, body=bytes(range(256)))
    replies = list(pool.call({node.name: request for node in cluster.nodes}))
print(json.dumps([
    [r.node, r.state, str(r.error or ""), r.ok and r.last.head["args"] == args
     and r.last.body == bytes(range(256))] for r in replies
]))
"""

HOSTILE = [
    "",
    " ",
    "a  b",
    "'",
    '"',
    "$HOME",
    "`id`",
    ";",
    "*",
    "\n",
    '{"a": [1]}',
    "é\udcff",
    "\\",
]


@pytest.mark.netns
def test_every_login_shell(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=len(SHELLS), shells=SHELLS)
    args = json.dumps({"argv": HOSTILE, "env": {value: value for value in HOSTILE}})
    done = box.run(
        [sys.executable, "-c", SCRIPT, str(box.inventory), args], cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    replies = json.loads(done.stdout)
    assert len(replies) == len(SHELLS)
    for node, state, words, equal in replies:
        assert (state, equal) == ("ok", True), (node, words)
