"""A sync never changes files under a live run, whichever of the two comes first."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent import child_tasks
from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.mirror import sync_lock
from clusterctl.node.mirror.sync_lock import hold_lock, keep_syncs_out
from clusterctl.node.mirror.tree_hash import Entry, digest_of, encode_listing, tree_hash
from clusterctl.node.run.operations import start
from clusterctl.transport.connection import LocalConnection
from clusterctl.transport.interface import Request, Timeouts
from clusterctl.wire import Message
from tests.node.conftest import Run
from tests.waiting import wait_until

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
    request = Request(op="sync-apply", args=args, body=encode_listing(listing))
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


def test_a_sync_removes_what_a_killed_one_left(make_run: Callable[..., Run]) -> None:
    run = make_run(SLEEP)
    place(run, "a.py")
    left = run.workdir / ".clusterctl" / "manifest.json.0123456789ab.new"
    for name, age, stays in ((left, 3600, True), (left, 90000, False)):
        name.touch()
        os.utime(name, (time.time() - age,) * 2)
        assert place(run, "a.py")[-1]["equal"]
        assert name.exists() is stays


def test_a_sync_looks_again_before_it_begins(make_run: Callable[..., Run]) -> None:
    """Locks may be missing, as on some filesystems: here, the file and the folder are others."""
    run = make_run(SLEEP)
    place(run, "a.py")

    def move_and_start() -> None:
        run.workdir.rename(run.folder / "locked")
        (run.folder / "locked" / ".clusterctl" / "lock").unlink()
        run.workdir.mkdir()
        for path in (run.folder / "locked").iterdir():
            path.rename(run.workdir / path.name)
        run.start()

    error = place(run, "b.py", move_and_start)[-1]["error"]
    assert (error["kind"], error["holder"]["run"]) == ("busy", run.plan.run)
    assert [path.name for path in run.workdir.glob("*.py")] == ["a.py"]


@pytest.mark.parametrize("synced_before", [True, False])
def test_a_sync_does_not_begin_while_a_run_starts(tmp_path: Path, *, synced_before: bool) -> None:
    root = os.fsencode(tmp_path)
    if synced_before:
        (tmp_path / ".clusterctl").mkdir()
        with hold_lock(root, SYNC):
            (tmp_path / ".clusterctl" / "manifest.json").touch()
    with keep_syncs_out(root), keep_syncs_out(root):  # as several runs may
        (tmp_path / ".clusterctl").mkdir(exist_ok=True)
        words = "^a run is starting here$"
        with pytest.raises(OperationError, match=words) as refused, hold_lock(root, SYNC):
            pass
        assert refused.value.kind == "locked"
    assert (tmp_path / ".clusterctl").exists() is synced_before
    with hold_lock(root, SYNC) as alone:
        assert alone


def test_the_first_sync_of_a_folder_does_not_lock_what_a_start_takes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, opened = os.fsencode(tmp_path), sync_lock._opened
    start = keep_syncs_out(root)
    start.__enter__()

    def open_then_remove(folder: bytes) -> int | None:
        found = opened(folder)
        monkeypatch.setattr(sync_lock, "_opened", opened)
        start.__exit__(None, None, None)
        assert not list(tmp_path.iterdir())
        return found

    monkeypatch.setattr(sync_lock, "_opened", open_then_remove)
    with hold_lock(root, SYNC) as alone:
        assert alone
        with pytest.raises(OperationError, match="a sync writes to"), keep_syncs_out(root):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
@pytest.mark.parametrize("synced_before", [True, False])
@pytest.mark.parametrize("locked", [".", ".clusterctl", ".clusterctl/lock"])
def test_who_can_only_read_the_folder_holds_nobody_up(locked: str, *, synced_before: bool) -> None:
    work = Path(tempfile.mkdtemp(dir="/var/tmp"))
    root, path = os.fsencode(work), work / locked
    try:
        work.chmod(0o755)
        for _ in range(synced_before):
            with hold_lock(root, SYNC):
                pass
            (work / ".clusterctl" / "manifest.json").touch()
            (work / ".clusterctl" / "lock").chmod(0o644)  # as earlier versions left it
            with keep_syncs_out(root):
                pass
        with keep_syncs_out(root):
            argv = ["flock", "--no-fork", "--exclusive", "--nonblock", str(path), "echo", "held"]
            heard = subprocess.run(
                argv, user=65534, group=65534, capture_output=True, check=False
            ).stdout
            assert (b"held" in heard) == (locked != ".clusterctl/lock")
        argv[-2:] = ["sh", "-c", "echo held; exec sleep 300"]
        with subprocess.Popen(argv, user=65534, group=65534, stdout=subprocess.PIPE) as stranger:
            try:
                assert stranger.stdout is not None
                stranger.stdout.readline()
                with keep_syncs_out(root):
                    pass
                with hold_lock(root, SYNC) as alone:
                    assert alone
            finally:
                stranger.kill()
    finally:
        shutil.rmtree(work)


def test_only_those_who_may_write_to_the_folder_can_open_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / ".clusterctl" / "lock"
    for mode, expected in ((0o755, 0o600), (0o775, 0o660), (0o777, 0o666), (0o700, 0o600)):
        tmp_path.chmod(mode)
        with keep_syncs_out(os.fsencode(tmp_path)):
            assert stat.S_IMODE(lock.stat().st_mode) == expected
            lock.chmod(0o644)
            with keep_syncs_out(os.fsencode(tmp_path)):
                assert stat.S_IMODE(lock.stat().st_mode) == expected & 0o644


def test_nothing_is_made_where_a_link_of_ours_leads(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work" / ".clusterctl").symlink_to(tmp_path / "elsewhere")
    with keep_syncs_out(os.fsencode(tmp_path / "work")):
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_does_not_answer_holds_the_start_up_for_a_while_only(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(SLEEP)
    monkeypatch.setattr(start, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(sync_lock, "_opened", lambda _root: time.sleep(300))
    monkeypatch.setattr(start, "check_with_timeout", lambda _workdir, check: check())
    with pytest.raises(OperationError, match=r"workdir .* no answer within 0\.2 s") as refused:
        start.start(*run.start_request(0), CallChannel(io.BytesIO(), -1))
    assert refused.value.kind == "workdir"


def test_a_look_that_hangs_has_no_part_of_the_lock(tmp_path: Path) -> None:
    """A child that cannot be killed would hold what it has for ever."""
    with start.without_syncs(str(tmp_path)):
        child = child_tasks.run_function("hung", lambda _write: time.sleep(300), 300.0)
        lock = tmp_path / ".clusterctl" / "lock"
        try:
            wait_until(lambda: len(list(Path(f"/proc/{child.pid}/fd").iterdir())) == 3)
            assert lock.exists()
        except BaseException:
            child.abandon("failed")
            raise
    try:
        with hold_lock(os.fsencode(tmp_path), SYNC) as alone:
            assert alone
    finally:
        child.abandon("done")


def test_the_lock_is_held_until_the_supervisor_holds_the_runs(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    """`env_init` runs between the look at workdir and the start: it sees whether a sync may."""
    run = make_run(SLEEP)
    told = tmp_path / "told"
    lock = run.workdir / ".clusterctl" / "lock"
    ask = f"flock --exclusive --nonblock {lock} true; echo $? > {told}"
    run.change = {"env_init": ask}
    run.start()
    assert told.read_text() == "1\n"
    assert not lock.parent.exists()


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
