"""Nodes that see the same token share a folder, and so do their runs."""

from __future__ import annotations

from clusterctl.verbs.sync.shared_folders import (
    NodeView,
    describe_user,
    mutually_seen,
    shared_folders,
)

RUN = {"run": "lab-1", "user": "ada"}


def view(node: str, *tokens: str, run: dict[str, str] | None = None) -> NodeView:
    return NodeView(node=node, tokens=tokens, run=run)


def test_a_folder_is_named_by_the_first_token_that_its_nodes_see() -> None:
    found = shared_folders([view("a", "t1", "t2"), view("b", "t1", "t2"), view("c", "t3")])
    assert [(one.token, one.nodes, one.user) for one in found] == [
        ("t1", ("a", "b"), None),
        ("t3", ("c",), None),
    ]


def test_a_run_counts_for_its_own_folder_only() -> None:
    b = view("b", "t1", run=RUN)
    found = shared_folders([view("a", "t1"), b, view("c", "t2"), view("d", run=RUN)])
    assert [(one.token, one.user) for one in found] == [("t1", b), ("t2", None)]


def test_who_is_busy_is_said_by_where_it_runs() -> None:
    b = view("b", "t1", run=RUN)
    assert describe_user("b", b) == "lab-1 of ada is running here with other files"
    assert describe_user("a", b) == (
        "lab-1 of ada is running on b, which shares this folder, with other files"
    )
    unknown = describe_user("b", view("b", run={"pid": "7", "uid": "65534"}))
    assert unknown.startswith("an unknown run (pid 7 of uid 65534) is running here")


TOKENS = {"a": "ta", "b": "tb"}


def test_a_folder_is_shared_by_those_that_see_each_other() -> None:
    both = [view("a", "here", "ta", "tb"), view("b", "ta", "tb")]
    assert mutually_seen(both, TOKENS) == both


def test_a_node_that_claims_to_see_another_is_not_taken_into_its_folder() -> None:
    liar, good = view("a", "ta", "tb", run=RUN), view("b", "tb")
    assert mutually_seen([liar, good], TOKENS) == [view("a", "ta", run=RUN), good]
    assert mutually_seen([view("a", "tb"), good], TOKENS) == [view("a", "ta"), good]


def test_a_token_that_is_seen_no_more_leaves_its_node_a_folder() -> None:
    assert mutually_seen([view("a")], TOKENS) == [view("a", "ta")]


def test_a_node_that_left_no_token_only_reads() -> None:
    reader, outside = view("c", "tb", run=RUN), view("d")
    assert mutually_seen([reader, outside, view("b", "tb")], TOKENS)[:2] == [reader, outside]
