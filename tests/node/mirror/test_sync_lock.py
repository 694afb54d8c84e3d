"""Syncs of one folder are kept apart, those of two users too."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.mirror import sync_lock

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")

ADA, BOB = 65533, 65534
HERE = b"."
"""As seen from within: other users may not pass the folders above."""
SYNC = {"sync": "1", "user": "ada", "host": "laptop", "folder": "/code"}


@contextmanager
def acting(uid: int) -> Iterator[None]:
    before = os.getuid()
    os.setresuid(0, 0, 0)
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresuid(before, before, 0)


@contextmanager
def masked(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our folder in a workdir where several users may write."""
    folder = tmp_path / "work" / ".clusterctl"
    folder.mkdir(parents=True)
    for one in (folder.parent, folder):
        one.chmod(0o777)
    monkeypatch.chdir(folder.parent)
    return Path(".clusterctl")


def make_earlier_lock(ours: Path) -> None:
    """As earlier versions left it: others can read it, and so lock it."""
    (ours / "lock").touch(0o644)
    os.chown(ours / "lock", ADA, ADA)


@pytest.mark.parametrize("mask", [0o000, 0o022])
@pytest.mark.parametrize("order", [(ADA, BOB), (BOB, ADA)])
def test_a_second_users_sync_waits_for_the_first(
    ours: Path, mask: int, order: tuple[int, int]
) -> None:
    first, second = order
    with masked(mask):
        with acting(ADA), sync_lock.hold_lock(HERE, SYNC) as alone:
            assert alone
        with acting(first), sync_lock.hold_lock(HERE, {**SYNC, "sync": "2"}) as alone:
            assert alone
            with (
                acting(second),
                pytest.raises(OperationError, match="another sync writes here now"),
                sync_lock.hold_lock(HERE, {"sync": "3"}),
            ):
                pass
        assert (ours / "lock").stat().st_uid == ADA


def test_no_sync_is_named_by_a_lock_that_its_holder_cannot_write(ours: Path) -> None:
    make_earlier_lock(ours)
    with acting(ADA):
        with sync_lock.hold_lock(HERE, SYNC):
            assert '"host":"laptop"' in (ours / "lock").read_text()
        with (
            acting(BOB),
            sync_lock.hold_lock(HERE, {"sync": "2"}),
            acting(ADA),
            pytest.raises(OperationError, match=r"another sync writes here now$"),
            sync_lock.hold_lock(HERE, {"sync": "3"}),
        ):
            pass


def test_where_we_may_write_nothing_there_is_nothing_to_keep_apart(ours: Path) -> None:
    os.chown(ours, ADA, ADA)
    ours.chmod(0o755)
    sync = sync_lock.hold_lock(HERE, {"sync": "2"})
    with acting(ADA), sync_lock.hold_lock(HERE, SYNC), acting(BOB), sync as alone:
        assert not alone


def test_a_lock_that_cannot_be_taken_by_readers_is_a_refusal(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where only those who may write a file can lock it alone."""
    taken: Callable[[Any, int], None] = fcntl.flock

    def flock(file: Any, how: int) -> None:
        if isinstance(file, int) or not file.writable():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        taken(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    make_earlier_lock(ours)
    with (
        acting(BOB),
        pytest.raises(OperationError, match=f"lock belongs to uid {ADA}") as caught,
        sync_lock.hold_lock(HERE, {"sync": "2"}),
    ):
        pass
    assert caught.value.kind == "locked"
    assert "chmod g+w" in str(caught.value.details["hint"])
