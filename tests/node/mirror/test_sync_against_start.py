"""A sync never changes files under a live run, whichever of the two comes first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.mirror.sync_lock import hold_lock, keep_syncs_out
from clusterctl.node.mirror.tree_hash import Entry, digest_of, encode_listing, tree_hash
from clusterctl.transport.connection import LocalConnection
from clusterctl.transport.interface import Request, Timeouts
from clusterctl.wire import Message
from tests.node.conftest import Run

SLEEP = "import time; print('here'); time.sleep(300)"
SYNC = {"sync": "s1", "user": "ada", "host": "laptop", "folder": "/code"}

Heads = list[dict[str, Any]]


def place(run: Run, name: str, before_go: Callable[[], object] = lambda: None) -> Heads:
    """Sync one file to the run's workdir in place of all that was placed before."""
    code = run.folder / "code" / name
    code.parent.mkdir(exist_ok=True)
    code.write_text(name)
    listing = {os.fsencode(name): Entry("f", digest_of(os.fsencode(code), "f"))}
    lock = run.plan.nodes[0].lock
    args = {"workdir": str(run.workdir), "tree": tree_hash(listing), "lock": lock, "holder": SYNC}
    connection = LocalConnection(run.cluster.nodes[0], timeouts=Timeouts())
    request = Request(op="place", args=args, body=encode_listing(listing))
    call = connection.call(request, timeout=60)
    heads: Heads = []
    try:
        for message in call.messages():
            heads.append(message.head)
            if "deletions" in message.head:
                before_go()
                call.send(Message({"go": True}))
            elif "begun" in message.head:
                (run.workdir / name).write_bytes(code.read_bytes())
                call.send(Message({"sent": True}))
    finally:
        call.close()
    return heads


def test_a_run_does_not_start_while_a_sync_is_under_way(make_run: Callable[..., Run]) -> None:
    run = make_run(SLEEP)
    assert place(run, "a.py")[-1]["equal"]
    refused: Heads = []
    heads = place(run, "b.py", lambda: refused.append(run.start_node(0)["error"]))
    assert heads[-1]["equal"]
    assert refused[0]["kind"] == "busy"
    expected = f"a sync writes to workdir {run.workdir} now: ada from laptop:/code, since 20"
    assert refused[0]["message"].startswith(expected)
    run.start()


def test_a_sync_looks_again_before_it_begins(make_run: Callable[..., Run]) -> None:
    """Locks may be missing, as on some filesystems: here, the file and the folder are others."""
    run = make_run(SLEEP)
    place(run, "a.py")

    def start() -> None:
        run.workdir.rename(run.folder / "locked")
        (run.folder / "locked" / ".clusterctl" / "lock").unlink()
        run.workdir.mkdir()
        for path in (run.folder / "locked").iterdir():
            path.rename(run.workdir / path.name)
        run.start()

    error = place(run, "b.py", start)[-1]["error"]
    assert (error["kind"], error["holder"]["run"]) == ("busy", run.plan.run)
    assert [path.name for path in run.workdir.glob("*.py")] == ["a.py"]


@pytest.mark.parametrize("synced_before", [True, False])
def test_a_sync_does_not_begin_while_a_run_starts(tmp_path: Path, *, synced_before: bool) -> None:
    root = os.fsencode(tmp_path)
    if synced_before:
        (tmp_path / ".clusterctl").mkdir()
        with hold_lock(root, SYNC):
            pass
    with keep_syncs_out(root), keep_syncs_out(root):  # as several runs may
        (tmp_path / ".clusterctl").mkdir(exist_ok=True)
        words = "another sync writes here now" if synced_before else "a run is starting here"
        with pytest.raises(OperationError, match=words) as refused, hold_lock(root, SYNC):
            pass
        assert refused.value.kind == "locked"
    with hold_lock(root, SYNC) as alone:
        assert alone


def test_the_lock_is_held_until_the_supervisor_holds_the_runs(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    """`env_init` runs between the look at workdir and the start: it sees whether a sync may."""
    run = make_run(SLEEP)
    told = tmp_path / "told"
    ask = f"flock --exclusive --nonblock {run.workdir} true; echo $? > {told}"
    run.change = {"env_init": ask}
    run.start()
    assert told.read_text() == "1\n"


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 60000,
        b'{"sync": 1, "host": "h", "since": 1e300}',
        b'{"host": "h", "since": "x", "user": [1]}',
        b'{"host": "h", "since": NaN}',
        b"\xff" * 100,
        b" " * (1 << 20) + b"{}",
    ],
)
def test_a_lock_file_that_another_wrote_by_hand_is_only_a_lock(
    tmp_path: Path, content: bytes
) -> None:
    root = os.fsencode(tmp_path)
    (tmp_path / ".clusterctl").mkdir()
    with hold_lock(root, SYNC):
        (tmp_path / ".clusterctl" / "lock").write_bytes(content)
        for wait in (hold_lock(root, {"sync": "s2"}), keep_syncs_out(root)):
            with (
                pytest.raises(OperationError, match=r"sync writes .*now(: .*h:, since .+)?$"),
                wait,
            ):
                pass


def test_little_of_a_huge_lock_file_is_shown(tmp_path: Path) -> None:
    (tmp_path / ".clusterctl").mkdir()
    root = os.fsencode(tmp_path)
    with hold_lock(root, SYNC):
        holder = b'{"host": "%s", "user": "%s"}' % (b"h" * 30000, b"u" * 30000)
        (tmp_path / ".clusterctl" / "lock").write_bytes(holder)
        with pytest.raises(OperationError) as refused, hold_lock(root, {"sync": "s2"}):
            pass
    assert len(str(refused.value)) < 1000
