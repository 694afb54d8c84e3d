"""What a verb exits with, by what became of its nodes: a failure counts more than silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import OPERATION, NodeError
from clusterctl.verbs.exec import ExecResult, NodeExec
from clusterctl.verbs.join.result import JoinResult, NodeJoin
from clusterctl.verbs.pull.result import NodePull, PathPull, PullResult
from clusterctl.verbs.push.result import NodePush, PathPush, PushResult
from clusterctl.verbs.setup.setup import NodeSetup, SetupResult
from clusterctl.verbs.sync.result import NodeSync, SyncResult


def pushed(*states: Any) -> PushResult:
    nodes = tuple(NodePush(node=str(n), state=state, path="/p") for n, state in enumerate(states))
    path = PathPush(path="p", source="a", source_path="/p", bytes=1, files=1, nodes=nodes)
    return PushResult(cluster="lab", paths=(path,), dry_run=False, seconds=1.0)


def pulled(*states: Any) -> PullResult:
    nodes = tuple(NodePull(node=str(n), state=state, path="/p") for n, state in enumerate(states))
    paths = (PathPull(path="p", nodes=nodes),)
    return PullResult(cluster="lab", to=str(Path.cwd()), paths=paths, seconds=1.0)


def synced(*states: Any) -> SyncResult:
    nodes = tuple(NodeSync(node=str(n), state=s, workdir="/w") for n, s in enumerate(states))
    return SyncResult(
        cluster="lab", source="/s", tree="t", files=1, bytes=1, commit=None, dirty=False, diff="",
        nodes=nodes, seconds=1.0,
    )  # fmt: skip


def joined(*states: Any) -> JoinResult:
    return JoinResult(run="r", nodes=tuple(NodeJoin(node="a", state=state) for state in states))


def made(*states: Any) -> SetupResult:
    nodes = tuple(NodeSetup(node=str(n), state=s, venv="/v") for n, s in enumerate(states))
    return SetupResult(source="r.txt", nodes=nodes)


def ran(*codes: int | str) -> ExecResult:
    """Return a result: an exit code of each node, or in which phase it failed."""
    nodes = tuple(
        NodeExec(node=str(n), exit_code=code)
        if isinstance(code, int)
        else NodeExec(node=str(n), exit_code=None, error=NodeError("x", code))
        for n, code in enumerate(codes)
    )
    return ExecResult(command=("true",), nodes=nodes)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (pushed("updated", "unchanged", "shared", "source"), 0),
        (pushed("updated", "unreachable"), 3),
        (pushed("unreachable", "failed"), 1),
        (pulled("pulled", "unchanged", "same"), 0),
        (pulled("absent", "pulled"), 0),
        (pulled("absent", "absent"), 1),
        (pulled("absent", "unreachable"), 3),
        (pulled("unreachable", "failed"), 1),
        (synced("updated", "unchanged"), 0),
        (synced("updated", "unreachable"), 3),
        (synced("unreachable", "failed"), 1),
        (joined("joined", "joined"), 0),
        (joined("joined", "unreachable"), 3),
        (joined("unreachable", "refused"), 1),
        (made("created", "unchanged"), 0),
        (made("created", "unreachable"), 3),
        (made("unreachable", "failed"), 1),
        (ran(0, 0), 0),
        (ran(0, 7), 1),
        (ran(0, OPERATION), 1),
        (ran(7, "connect"), 3),
    ],
)
def test_the_worst_that_became_of_a_node_decides(result: Any, code: int) -> None:
    assert result.exit_code == code
