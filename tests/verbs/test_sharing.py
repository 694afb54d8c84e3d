"""Nodes that see the same token share a folder, and so do their runs."""

from __future__ import annotations

from clusterctl.verbs.sharing import Sight, busy, folders

RUN = {"run": "lab-1", "user": "ada"}


def sight(node: str, *tokens: str, run: dict[str, str] | None = None) -> Sight:
    return Sight(node=node, tokens=tokens, run=run)


def test_a_folder_is_named_by_the_first_token_that_its_nodes_see() -> None:
    found = folders([sight("a", "t1", "t2"), sight("b", "t1", "t2"), sight("c", "t3")])
    assert [(one.token, one.nodes, one.user) for one in found] == [
        ("t1", ("a", "b"), None),
        ("t3", ("c",), None),
    ]


def test_a_run_counts_for_its_own_folder_only() -> None:
    b = sight("b", "t1", run=RUN)
    found = folders([sight("a", "t1"), b, sight("c", "t2"), sight("d", run=RUN)])
    assert [(one.token, one.user) for one in found] == [("t1", b), ("t2", None)]


def test_who_is_busy_is_said_by_where_it_runs() -> None:
    b = sight("b", "t1", run=RUN)
    assert busy("b", b) == "lab-1 of ada is running here with other files"
    assert busy("a", b) == (
        "lab-1 of ada is running on b, which shares this folder, with other files"
    )
    assert busy("b", sight("b", run={"pid": "1"})).startswith("an unknown run of someone")
