"""What a node says that it would delete, and what becomes of that."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.verbs.deletions import Leftovers, Origin, leftovers_of, refusal
from clusterctl.wire import Message

HERE = Origin(host="laptop", folder="/home/me/proj")


def plan(*paths: str, need: object = 0, **head: Any) -> Leftovers:
    body = "".join(f"{path}\0" for path in paths).encode()
    return leftovers_of("n", Message({"need": need, **head}, body))


def refused(one: Leftovers, *command: str, here: Origin = HERE) -> str:
    why = refusal([one], here=here, command=command, workdirs={"n": "/w"}, launching=False)
    return f"{why}\n{why.hint}" if why is not None else ""


def test_what_is_needed_is_not_what_is_deleted() -> None:
    assert plan("a", "b", "c", need=2).paths == ("c",)


@pytest.mark.parametrize("need", [None, "2", [], {}])
def test_a_plan_of_another_shape_deletes_nothing(need: object) -> None:
    assert plan("a", need=need, placed="x", moved=-1) == Leftovers(
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
    assert "cd '/home/me/$(id) x' on other, or --delete" in said


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
