"""The dialogue of a sync with a host that is not what it says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.sync.mirror import (
    PATHS_LIMIT,
    SMALL,
    Placement,
    planned_deletions,
    stays_and_needs,
    still_here,
)
from clusterctl.sync.source import read_source
from clusterctl.transport.interface import Reply
from clusterctl.transport.pool import Pool
from clusterctl.wire import Message
from tests.failed_reply import error_of
from tests.sshd_servers import Sshd, cluster_of
from tests.sync.placement import placement_of

HOSTILE = Path(__file__).parents[1] / "transport" / "hostile_node.py"


@pytest.mark.parametrize(
    "wanted", [["a.py", ".env"], [".git/config"], ["data/id"], ["../outside"], ["./a.py"]]
)
def test_a_host_is_given_no_file_that_the_sync_does_not_place(
    make_sshd: Callable[..., Sshd], tmp_path: Path, wanted: list[str]
) -> None:
    source, loot = tmp_path / "code", tmp_path / "loot"
    (source / ".git").mkdir(parents=True)
    (source / "a.py").touch()
    placed = read_source_of(source)
    (source / ".env").write_text("TOKEN=secret\n")
    (source / ".git" / "config").touch()
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "id").touch()
    (tmp_path / "outside").touch()
    (source / "data").symlink_to(tmp_path / "private")
    loot.mkdir()
    server = make_sshd(f"ForceCommand {sys.executable} {HOSTILE} {loot} {' '.join(wanted)}")
    with Pool(cluster_of(server.node("n"))) as pool:
        (reply,) = pool.mirror({"n": placed})
    assert reply.state == "bad-output"
    assert "that are not part of the sync" in error_of(reply).message
    assert wanted[-1] in error_of(reply).message
    assert not [path for path in loot.rglob("*") if path.is_file()]


def read_source_of(folder: Path) -> Placement:
    (folder / ".git").rmdir()
    found = read_source(folder)
    (folder / ".git").mkdir()
    return placement_of(found, "n", workdir="/unused", lock="none")


def test_the_same_host_gets_what_the_sync_places(
    make_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    """Or the test above would prove nothing."""
    source, loot = tmp_path / "code", tmp_path / "loot"
    (source / ".git").mkdir(parents=True)
    (source / "a.py").write_bytes(bytes(SMALL))  # or rsync would have no part in it
    loot.mkdir()
    server = make_sshd(f"ForceCommand {sys.executable} {HOSTILE} {loot} a.py")
    with Pool(cluster_of(server.node("n"))) as pool:
        (reply,) = pool.mirror({"n": read_source_of(source)})
    assert reply.ok, reply
    assert (loot / "a.py").exists()


def test_a_plan_of_more_paths_than_a_folder_holds_is_not_taken_apart() -> None:
    """A body of zero bytes is small; a list of its empty paths is not."""
    with pytest.raises(NodeError, match=f"a plan of {PATHS_LIMIT + 1:,} paths") as caught:
        planned_deletions(Message({"need": 0}, b"\0" * (PATHS_LIMIT + 1)))
    assert ".gitignore" in caught.value.hint
    assert planned_deletions(Message({"need": 1}, b"new.py\0old.py\0")) == ("old.py",)


def test_a_project_of_two_million_files_can_be_replaced() -> None:
    assert len(planned_deletions(Message({"need": 0}, b"a\0" * 2_000_000))) == 2_000_000


def test_a_host_learns_nothing_of_what_is_outside_of_the_folder(tmp_path: Path) -> None:
    source = tmp_path / "code"
    (source / "sub").mkdir(parents=True)
    (tmp_path / "secret").touch()
    for name in ("listed.py", "ignored.bin", "Renamed.py"):
        (source / name).touch()
    (source / "link").symlink_to(tmp_path)
    names = ["../secret", "/etc/passwd", "link/secret", "sub", "sub/../ignored.bin", "gone.py"]
    asked = "\0".join(["listed.py", "ignored.bin", "Renamed.py", *names, ""]).encode()
    plan = Message({"need": 0}, asked)
    assert still_here(plan, source, [b"listed.py", b"renamed.py"]) == ["ignored.bin"]


def test_the_files_of_equal_plans_are_looked_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes wait meanwhile, and a thousand of them mostly need the same files."""
    looked: list[str | bytes] = []
    lstat = os.lstat

    def counting(path: Any, **options: Any) -> os.stat_result:
        looked.append(path)
        return lstat(path, **options)

    for name in ("new.py", "ignored.bin"):
        (tmp_path / name).write_text("12345")
    monkeypatch.setattr(os, "lstat", counting)
    alike = Message({"need": 1}, b"new.py\0ignored.bin\0")
    other = Message({"need": 0}, alike.body)
    plans = {"a": alike, "b": alike, "c": other, "d": alike}
    stays, needs = stays_and_needs(plans, tmp_path, [b"new.py"])
    assert stays == {name: ["ignored.bin"] for name in "abcd"}
    assert needs == {"a": {"new.py": 5}, "b": {"new.py": 5}, "c": {}, "d": {"new.py": 5}}
    assert sorted(map(os.fsdecode, looked)) == sorted(
        [f"{tmp_path}/new.py", "ignored.bin", "ignored.bin", "new.py"]
    )


def test_a_host_may_fail_at_a_file_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    answers = (
        Message({"need": 1}, b"a.py\0"),
        Message({"begun": True, "failed": "\ud800: No space left on device"}),
        Message({"end": True}),
    )
    node = Node(name="n", host="n", ssh=Ssh())
    call = Mock(node=node)
    call.messages.return_value, call.reply.return_value = iter(answers), Reply(node="n")
    connection = Mock(node=node)
    connection.call.return_value = call
    placed = placement_of(read_source(tmp_path), "n", workdir="/unused", lock="none")
    assert "No space left" in placed.hold(connection, Mock()).last.head["sent"]["words"]
