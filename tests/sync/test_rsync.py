"""rsync over connections that are open: over SSH, over the system's ssh, with noisy shells."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.sync import rsync
from clusterctl.sync.rsync import PushResult, push
from clusterctl.sync.source import read_source
from clusterctl.transport.interface import Reply
from clusterctl.transport.pool import Pool
from tests.failed_reply import error_of
from tests.sshd_servers import Sshd, cluster_of
from tests.sync.placement import placement_of

HOSTILE = Path(__file__).parents[1] / "transport" / "hostile_node.py"


def placed(cluster: Cluster, source: Path, work: Path) -> list[Reply]:
    (node,) = cluster.nodes
    placement = placement_of(
        read_source(source), node.name, workdir=str(work), lock=f"none-{os.getpid()}"
    )
    with Pool(cluster) as pool:
        return list(pool.mirror({node.name: placement}))


def push_one(pool: Pool, source: Path, folder: Path, workdir: Path | None = None) -> PushResult:
    """Send one file to node `n`."""
    return push(
        pool._connection("n"),
        source=source,
        paths=[b"file 1"],
        workdir=str(workdir or folder),
        folder=folder,
        temporary="own",
        alive=lambda _count: None,
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(200):
        (folder / f"file {number}").write_bytes(os.urandom(2000))
    (folder / "big").write_bytes(os.urandom(8 << 20))
    return folder


@pytest.mark.parametrize("via", ["paramiko", "openssh"])
def test_files_arrive_whole(sshd: Sshd, source: Path, tmp_path: Path, via: str) -> None:
    work = tmp_path / "work"
    (reply,) = placed(cluster_of(sshd.node("n", via=via)), source, work)
    assert reply.ok, reply
    assert reply.last.head["sent"] == {"code": 0, "words": ""}
    assert reply.last.head["equal"]
    assert (work / "big").read_bytes() == (source / "big").read_bytes()


def test_the_old_protocol_of_macos_will_do(
    sshd: Sshd, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protocol 29 is what rsync 2.6.9 and openrsync, which macOS has, speak."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "rsync").write_text(f'#!/bin/sh\nexec {shutil.which("rsync")} --protocol=29 "$@"\n')
    (tmp_path / "rsync").chmod(0o755)
    (source / "below/it").mkdir(parents=True)
    (source / "below/it/more").write_text("more")
    (reply,) = placed(cluster_of(sshd.node("n")), source, tmp_path / "work")
    assert reply.last.head["sent"] == {"code": 0, "words": ""}
    assert reply.last.head["equal"]


def test_an_rsync_with_one_socket_for_both_ways_sees_its_end() -> None:
    """It is what openrsync waits for after the transfer, while we still read what it may send."""
    shim, controller = socket.socketpair()
    own, given = socket.socketpair()
    with shim, controller, own, given:
        own.settimeout(5)
        socket.send_fds(shim, [b"[]"], [given.fileno(), given.fileno()])
        given.close()
        with rsync._handed_over(controller) as (_, source, _):
            reading = os.dup(source)
        assert own.recv(1) == b""
        os.close(reading)


def test_a_noisy_login_shell_does_not_hurt(
    make_sshd: Callable[..., Sshd], source: Path, tmp_path: Path
) -> None:
    script = tmp_path / "login"
    script.write_text('#!/bin/sh\necho welcome; echo noise >&2\neval "$SSH_ORIGINAL_COMMAND"\n')
    script.chmod(0o755)
    server = make_sshd(f"ForceCommand {script}")
    (reply,) = placed(cluster_of(server.node("n")), source, tmp_path / "work")
    assert reply.ok, reply
    assert reply.last.head["equal"]


def test_a_node_without_rsync(make_sshd: Callable[..., Sshd], source: Path, tmp_path: Path) -> None:
    server = make_sshd("SetEnv PATH=/nowhere")
    node = server.node("n")
    (reply,) = placed(cluster_of(replace(node, python="/usr/bin/python3")), source, tmp_path / "w")
    assert reply.state == "bad-output"
    assert error_of(reply).message == "rsync is not installed"


def test_a_full_disk_is_told_in_rsyncs_words(sshd: Sshd, source: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (source / "big").unlink()
    mounted = os.system(f"mount -t tmpfs -o size=64k none '{work}' 2>/dev/null") == 0
    if not mounted:
        pytest.skip("may not mount a small filesystem")
    try:
        (reply,) = placed(cluster_of(sshd.node("n")), source, work)
    finally:
        os.system(f"umount -l '{work}'")
    assert reply.ok, reply
    assert reply.last.head["sent"]["code"] != 0
    assert "No space left on device" in reply.last.head["sent"]["words"]
    assert not reply.last.head["equal"]


def test_what_may_not_be_written_is_told_in_rsyncs_words(
    sshd: Sshd, source: Path, tmp_path: Path
) -> None:
    """Whoever mirrors as root is stopped by a file that is immutable, not by its mode."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "big").touch()
    if subprocess.run(["chattr", "+i", str(work / "big")], check=False).returncode:
        pytest.skip("no immutable files here")
    try:
        (reply,) = placed(cluster_of(sshd.node("n")), source, work)
    finally:
        subprocess.run(["chattr", "-i", str(work / "big")], check=True)
    words = str(reply.messages[-1].head)
    assert "Operation not permitted" in words, reply


def test_an_rsync_that_comes_after_its_sync_can_write_nothing(
    sshd: Sshd, source: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (reply,) = placed(cluster_of(sshd.node("n")), source, work)
    assert reply.last.head["equal"]
    with Pool(cluster_of(sshd.node("n"))) as pool:
        # No sync holds the folder, so there is none for files that are not whole yet.
        done = push_one(pool, source, tmp_path, work)
    assert done.code == 1
    assert "temp-dir does not exist" in done.words


def test_holes_stay_holes(sshd: Sshd, tmp_path: Path) -> None:
    source, work = tmp_path / "code", tmp_path / "work"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(64 << 20)
    (reply,) = placed(cluster_of(sshd.node("n")), source, work)
    assert reply.last.head["equal"]
    assert (work / "sparse").stat().st_blocks * 512 < 1 << 20


def test_a_node_that_starts_something_else_than_rsync_is_sent_no_file(
    make_sshd: Callable[..., Sshd], source: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    server = make_sshd(f"ForceCommand {sys.executable} -I -S {HOSTILE} --play {script}")
    with Pool(cluster_of(server.node("n"))) as pool:
        for answer in ({"error": "no"}, {"error": {"message": [1]}}, {"exec": 0}, {"end": True}):
            script.write_text(json.dumps({"rsync": [answer]}))
            with pytest.raises(NodeError) as failed:
                push_one(pool, source, tmp_path)
            assert failed.value.state == "bad-output", answer


def limits(source: Path, sent: int = 0, received: int = 0, seconds: float = 0) -> str:
    transfer = rsync._Transfer(source, [b"big"])
    transfer.sent, transfer.received = sent, received
    transfer._began -= seconds
    transfer._window -= seconds
    transfer._due_at -= seconds
    return transfer._excess()


def test_a_transfer_ends_where_it_stalls_or_the_node_sends_without_end(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(100 << 30)
    day = 86400.0
    assert not limits(tmp_path, sent=100 << 30, seconds=1.2 * day)  # 1 MB/s
    assert not limits(tmp_path, received=1 << 30, seconds=3600)  # checksums of an old copy
    assert not limits(tmp_path, seconds=rsync.STALL_SECONDS - 1)
    assert limits(tmp_path, sent=10, seconds=rsync.STALL_SECONDS + 1).startswith("10 bytes moved")
    assert "not there after" in limits(tmp_path, sent=1 << 30, seconds=30 * day)
    assert "came for" in limits(tmp_path, received=20 << 30)
    (tmp_path / "big").write_bytes(b"x")
    assert "not there after" in limits(tmp_path, sent=1 << 20, seconds=rsync.STALL_SECONDS + 1)


def test_transfers_that_share_a_slow_uplink_have_more_time_each(tmp_path: Path) -> None:
    """As 64 nodes behind 10 Mbit/s: 20 kB/s for each."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 30)
    seconds = (1 << 30) / 20_000
    others = [rsync._Transfer(tmp_path, [b"big"]) for _ in range(63)]
    with ExitStack() as all_of_them:
        for other in others:
            all_of_them.enter_context(rsync._under_way(other))
        with rsync._under_way(rsync._Transfer(tmp_path, [])):
            assert not limits(tmp_path, sent=1 << 30, seconds=seconds)
            assert "not there after" in limits(tmp_path, sent=1 << 20, seconds=20 * seconds)
    assert "not there after" in limits(tmp_path, sent=1 << 30, seconds=seconds)


def test_a_node_that_drips_is_cut_off(
    make_sshd: Callable[..., Sshd], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.json"
    drip = {"exec": True, "waits": True}
    script.write_text(json.dumps({"rsync": [drip]}))
    server = make_sshd(f"ForceCommand {sys.executable} -I -S {HOSTILE} --play {script}")
    monkeypatch.setattr(rsync, "STALL_SECONDS", 2.0)
    with Pool(cluster_of(server.node("n"))) as pool, pytest.raises(NodeError) as failed:
        push_one(pool, source, tmp_path)
    assert "bytes moved in 2 s" in failed.value.message
    assert not list(tmp_path.glob("*rsync*"))


def test_an_rsync_that_ends_before_it_has_a_shim_leaves_nobody_waiting(
    sshd: Sshd, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rsync, "command", lambda *_: ["false"])
    with Pool(cluster_of(sshd.node("n"))) as pool:
        done = push_one(pool, source, tmp_path)
    assert done.code == 1
