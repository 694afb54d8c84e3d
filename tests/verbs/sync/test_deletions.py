"""What a node says that it would delete, and what becomes of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.verbs.sync.deletions import Deletions, SyncOrigin, deletions_of, refusal
from clusterctl.verbs.sync.result import SyncOptions
from clusterctl.wire import Message

HERE = SyncOrigin(host="laptop", folder="/home/me/proj")


def plan(*paths: str, need: object = 0, **head: Any) -> Deletions:
    body = "".join(f"{path}\0" for path in paths).encode()
    return deletions_of("n", Message({"need": need, **head}, body))


def refused(one: Deletions, *command: str, here: SyncOrigin = HERE, launching: bool = False) -> str:
    options = SyncOptions(command=command, launching=launching)
    why = refusal([one], here=here, workdirs={"n": "/w"}, options=options)
    return f"{why}\n{why.hint}" if why is not None else ""


def test_what_is_needed_is_not_what_is_deleted() -> None:
    assert plan("a", "b", "c", need=2).paths == ("c",)


@pytest.mark.parametrize("need", [None, "2", [], {}])
def test_a_plan_of_another_shape_deletes_nothing(need: object) -> None:
    assert plan("a", need=need, placed="x", moved=-1) == Deletions(
        node="n", paths=(), moved=0, placed=0, origin=None
    )


@pytest.mark.parametrize(
    "origin",
    [
        {"host": "x\x1b[2J", "folder": "/a"},
        {"host": "x; id", "folder": "/a"},
        {"host": "x", "folder": "/a\nhint: rm -rf ~"},
        {"host": "x", "folder": "a"},
        ["x", "/a"],
    ],
)
def test_an_origin_that_cannot_be_is_none(origin: object) -> None:
    assert plan("a", placed=1, **{"from": origin}).origin is None


def test_a_folder_in_a_command_to_type_is_quoted() -> None:
    there = {"host": "other", "folder": "/home/me/$(id) x"}
    said = refused(plan("a", placed=1, **{"from": there}))
    assert "cd '/home/me/$(id) x' on other, or --workdir" in said


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (("bash", "run/a.sh"), "run/a.sh"),
        (("./a.sh",), "a.sh"),
        (("/w/a.sh",), "a.sh"),
        (("-m", "pkg.train"), "pkg/train.py"),
        (("-m", "pkg"), "pkg/__main__.py"),
        (("train.py", "--config=conf/x.yaml"), "conf/x.yaml"),
        (("train.py", "data=conf/x.yaml"), "conf/x.yaml"),
    ],
)
def test_a_file_that_the_command_names_is_needed(command: tuple[str, ...], path: str) -> None:
    one = plan(path, placed=100, **{"from": {"host": HERE.host, "folder": HERE.folder}})
    assert "lacks 1 of 100 files" in refused(one, *command)
    assert not refused(one, "other.py")


@pytest.mark.parametrize(
    ("count", "placed", "same", "refuses"),
    [
        (5, 5, True, False),
        (6, 11, True, True),
        (6, 12, True, False),
        (1, 2, False, True),
        (1, 3, False, False),
    ],
)
def test_how_much_is_most(count: int, placed: int, same: bool, refuses: bool) -> None:  # noqa: FBT001
    origin = {"host": HERE.host, "folder": HERE.folder if same else "/elsewhere"}
    one = plan(*map(str, range(count)), placed=placed, **{"from": origin})
    assert bool(refused(one)) is refuses


ELSEWHERE = {"host": "other", "folder": "/there"}


def test_the_refusal_says_what_goes_where_it_came_from_and_every_way_out() -> None:
    one = plan("a", "b", "c", "d", placed=5, **{"from": ELSEWHERE})
    assert refused(one) == (
        "this folder lacks 4 of 5 files that were synced from other:/there (n): a, b, c, …\n"
        "cd /there on other, or --workdir DIR for another folder on the nodes,"
        " or --delete to delete them on the nodes"
    )
    assert refused(one, launching=True).endswith(
        "cd /there on other, or --workdir DIR for another folder on the nodes,"
        " or --no-sync to run what is there,"
        " or --delete to delete them on the nodes"
    )
    assert "cd /there, or --workdir" in refused(one, here=SyncOrigin(host="other", folder="/x"))


def test_a_file_that_the_command_needs_is_named_first() -> None:
    here = {"host": HERE.host, "folder": HERE.folder}
    said = refused(plan("a", "b", "c", "x.py", placed=50, **{"from": here}), "x.py")
    assert ": x.py, … that the command needs\n--delete to delete" in said


def test_where_files_came_from_may_not_be_known() -> None:
    said = refused(plan("a", placed=1))
    assert "lacks 1 of 1 file that were synced (n): a\n" in said
    assert "cd to the folder of the code, or --delete" in said


def test_nodes_that_would_lose_the_same_are_told_together() -> None:
    from_there = {"from": ELSEWHERE, "placed": 1}
    one, other = plan("a", **from_there), plan("b", **from_there)
    found = [one, replace(one, node="m"), replace(other, node="o")]
    workdirs = dict.fromkeys("nmo", "/w")
    why = refusal(found, here=HERE, workdirs=workdirs, options=SyncOptions())
    assert "(n, m): a" in str(why)


def test_what_is_only_moved_is_not_lost() -> None:
    assert refused(plan("a", "b", placed=3, moved=0, **{"from": ELSEWHERE}))
    assert not refused(plan("a", "b", placed=3, moved=1, **{"from": ELSEWHERE}))
    assert not refused(plan("a", placed=1, moved=1, **{"from": ELSEWHERE}))
