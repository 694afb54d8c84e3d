"""What a sync did, for a person and for a program."""

from __future__ import annotations

import io
import json

from clusterctl.report.console import make_console
from clusterctl.report.copies import show_sync
from clusterctl.verbs.sync.result import NodeSync, SyncResult, SyncState

TREE = "0123456789abcdef"


def node(name: str, state: SyncState, **more: object) -> NodeSync:
    return NodeSync(node=name, state=state, workdir="/code", **more)  # type: ignore[arg-type]


def result_of(*nodes: NodeSync, files: int = 2) -> SyncResult:
    return SyncResult(
        cluster="lab",
        source="/home/me/code",
        tree=TREE,
        files=files,
        bytes=10,
        commit="f" * 40,
        dirty=True,
        diff="+a line\n",
        nodes=nodes,
        seconds=1.23,
    )


def shown(result: SyncResult) -> list[str]:
    stream = io.StringIO()
    show_sync(make_console(stream), result)
    return stream.getvalue().splitlines()


def test_nodes_with_the_same_outcome_are_one_line() -> None:
    nodes = [node(f"gpu{number:02}", "unchanged") for number in range(1, 9)]
    lines = shown(result_of(*nodes, node("gpu09", "updated", sent=1, deleted=3)))
    assert lines[:2] == ["gpu[01-08]: /code is up to date", "gpu09: /code: 1 file sent, 3 deleted"]
    assert "".join(lines[2:]) == (
        f"9 of 9 nodes have the tree {TREE[:12]}"
        f" (2 files, commit {'f' * 12}, with uncommitted changes) in 1.2 s"
    )


def test_a_failure_is_said_with_its_hint_in_one_piece() -> None:
    hint = "try: " + "x" * 150
    lines = shown(result_of(node("a", "failed", words="no room", hint=hint), files=1))
    assert lines[:2] == ["a: failed: no room", f"hint: {hint}"]
    silent = shown(result_of(node("a", "unreachable", words="unreachable (connect): no route")))
    assert silent[0] == "a: unreachable (connect): no route"
    assert "0 of 1 node has the tree" in lines[2]
    assert "(1 file, " in lines[2]


def test_what_a_node_says_cannot_drive_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2Jgone\r"
    lines = shown(result_of(node("a", "failed", words=evil, hint=evil)))
    assert lines[:2] == ["a: failed: gone", "hint: gone"]


def test_the_document_has_everything_but_the_patch() -> None:
    document = json.loads(json.dumps(result_of(node("a", "shared")).document()))
    assert document["schema"] == 1
    assert document["nodes"][0]["state"] == "shared"
    assert "diff" not in document
    assert document["dirty"] is True
