"""A folder that is mirrored into: what the system refuses is said, and no change is overlooked."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.mirror import mirror, sync_diff
from clusterctl.node.mirror.manifest import FOLDER, Manifest
from clusterctl.node.mirror.sync_lock import CONTROLLER_SECONDS
from clusterctl.node.mirror.sync_plan import SyncPlan
from clusterctl.node.mirror.tree_hash import Entry, Listing, digest_of, encode_listing, tree_hash
from clusterctl.wire import Message


class Controller:
    """The other end of the link: does something in the folder when asked for the files."""

    def __init__(self, bring: Callable[[], object]) -> None:
        self._bring = bring

    def send(self, message: Message) -> None:
        if "begun" in message.head:
            self._bring()

    def receive(self) -> Message:
        return Message({"sent": 1})


def listing_of(folder: Path) -> Listing:
    files = (path for path in folder.iterdir() if path.is_file())
    return {os.fsencode(f.name): Entry("f", digest_of(os.fsencode(f), "f")) for f in files}


def placed(
    work: Path, listing: Listing, bring: Callable[[], object], **more: str
) -> dict[str, Any]:
    args = {"workdir": str(work), "tree": tree_hash(listing), "lock": "clusterctl-test-of-mirror"}
    args |= more
    return mirror.apply_sync(args, encode_listing(listing), Controller(bring)).head  # type: ignore[arg-type]


@pytest.fixture
def wanted(tmp_path: Path) -> Listing:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("A = 1\n")
    return listing_of(tmp_path / "code")


def test_what_is_in_the_way_of_our_files_is_named(tmp_path: Path, wanted: Listing) -> None:
    work = tmp_path / "work"
    (work / ".clusterctl" / "lock").mkdir(parents=True)
    with pytest.raises(OperationError, match=r"\.clusterctl/lock: expected a file, found a folder"):
        placed(work, wanted, lambda: None)
    (work / ".clusterctl" / "seen").touch()
    args = {"workdir": str(work), "tree": "", "token": "t"}
    with pytest.raises(OperationError, match=r"\.clusterctl/seen: expected a folder, found a file"):
        sync_diff.compare_tree(args, encode_listing(wanted), None)  # type: ignore[arg-type]


def test_a_folder_that_never_answers_costs_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a mount whose server has gone: whoever looks into it waits for ever."""
    waiting = threading.Event()
    monkeypatch.setattr(sync_diff, "ANSWER_SECONDS", 0.1, raising=False)
    scandir = os.scandir

    def hang(path: bytes) -> Iterator[os.DirEntry[bytes]]:
        waiting.wait(60)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", hang)
    try:
        with pytest.raises(OperationError, match="does not answer: nothing within") as refused:
            sync_diff.compare_tree({"workdir": str(tmp_path), "tree": "", "token": "t"}, b"", None)  # type: ignore[arg-type]
    finally:
        waiting.set()
    assert refused.value.kind == "silent"


def test_a_file_that_changes_after_it_was_proven_is_seen_to_the_next_time(
    tmp_path: Path, wanted: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    finish = SyncPlan.finish

    def late(change: SyncPlan, tree: str) -> None:
        (work / "a.py").write_text("A = 2\n")
        time.sleep(0.1)  # longer than the manifest distrusts times for
        finish(change, tree)

    monkeypatch.setattr(SyncPlan, "finish", late)
    told = placed(work, wanted, lambda: (work / "a.py").write_text("A = 1\n"))
    assert told["equal"]
    assert sync_diff.differences(Manifest(os.fsencode(work)), wanted) == [b"a.py"]


@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_folder_is_in_the_way_of_one(
    tmp_path: Path, wanted: Listing, *, link: bool
) -> None:
    own = tmp_path / "work" / "pkg"
    own.parent.mkdir()
    if link:
        own.symlink_to(tmp_path)
    else:
        own.write_text("the user's")
    with pytest.raises(OperationError, match="in the way: pkg") as refused:
        placed(own.parent, {b"pkg/a.py": wanted[b"a.py"]}, lambda: None)
    assert refused.value.kind == "in-the-way"


def test_a_file_that_was_there_before_the_first_sync_stays(tmp_path: Path, wanted: Listing) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.py").write_text("A = 1\n")
    assert placed(work, wanted, lambda: None)["equal"]
    moved = {b"b.py": wanted[b"a.py"]}
    assert placed(work, moved, lambda: (work / "b.py").write_text("A = 1\n"))["equal"]
    assert (work / "a.py").read_text() == "A = 1\n"


@pytest.mark.parametrize("argv", [["rsync", "--daemon"], ["sh", "--server"], []])
def test_no_other_command_than_rsyncs_is_run(tmp_path: Path, argv: list[str]) -> None:
    with pytest.raises(OperationError, match="not a command of rsync's"):
        mirror.exec_rsync({"workdir": str(tmp_path), "argv": argv}, b"", None)  # type: ignore[arg-type]


def test_the_temporary_folder_is_within_clusterctls_own(tmp_path: Path, wanted: Listing) -> None:
    work = tmp_path / "work"
    for place in (work, tmp_path):
        (place / "kept").mkdir(parents=True)
    bring = (work / "a.py").write_text
    for name in ("../../kept", "../../../kept", str(tmp_path / "kept")):
        (work / "a.py").unlink(missing_ok=True)
        assert placed(work, wanted, lambda: bring("A = 1\n"), temporary=name)["equal"]
        assert (work / "kept").is_dir()
        assert (tmp_path / "kept").is_dir()


@pytest.mark.parametrize("left", ["empty", "link"])
def test_a_folder_that_does_not_vanish_by_itself_is_in_the_way(
    tmp_path: Path, wanted: Listing, left: str
) -> None:
    work = tmp_path / "work"
    (work / "a.py").mkdir(parents=True)
    if left == "empty":
        (work / "a.py" / "empty").mkdir()
    else:
        (work / "a.py" / "link").symlink_to(tmp_path)
    with pytest.raises(OperationError, match=r"in the way: a\.py") as caught:
        placed(work, wanted, lambda: None)
    assert caught.value.kind == "in-the-way"


@pytest.mark.parametrize("text", ["[]", '{"tree": "x", "files": []}', '{"tree": "x", "files": 5}'])
def test_a_manifest_of_another_shape_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / os.fsdecode(FOLDER)).mkdir()
    (tmp_path / os.fsdecode(FOLDER) / "manifest.json").write_text(text)
    assert Manifest(os.fsencode(tmp_path)).records == {}


class Mute(Controller):
    """A controller that hears the plan and is not heard of again."""

    def receive(self) -> Message:
        return None  # type: ignore[return-value]


def test_a_controller_that_falls_silent_changes_nothing(tmp_path: Path, wanted: Listing) -> None:
    work = tmp_path / "work"
    args = {"workdir": str(work), "tree": tree_hash(wanted), "lock": "clusterctl-test-of-mirror"}
    link = Mute(lambda: None)
    answer = mirror.apply_sync(args, encode_listing(wanted), link)  # type: ignore[arg-type]
    assert answer.head == {"aborted": True}
    assert link.receive_timeout_s == CONTROLLER_SECONDS  # type: ignore[attr-defined]
    assert not (work / "a.py").exists()
    assert placed(work, wanted, lambda: (work / "a.py").write_text("A = 1\n"))["equal"]


def test_silence_ends_the_wait_for_the_controller() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "wb", 0) as writer:
        link = CallChannel(reader, writer.fileno())
        link.receive_timeout_s = 0.05
        assert link.receive() is None
        writer.write(Message({"alive": True}).encode()[:5])  # cut off within a frame
        assert link.receive() is None
        link.receive_timeout_s = None
        writer.write(Message({"alive": True}).encode()[5:])


def test_an_edit_between_the_plan_and_the_deletion_is_kept(tmp_path: Path, wanted: Listing) -> None:
    work = tmp_path / "work"
    placed(work, wanted, lambda: (work / "a.py").write_text("A = 1\n"))
    change = SyncPlan(os.fsencode(work), Manifest(os.fsencode(work)), {})
    (work / "a.py").write_text("edited since\n")
    change.begin()
    (kept,) = (work / ".clusterctl" / "replaced").rglob("a.py")
    assert (change.deleted, kept.read_text()) == (0, "edited since\n")


def test_a_link_between_the_plan_and_the_deletion_is_not_followed(tmp_path: Path) -> None:
    work, master = tmp_path / "work", tmp_path / "master"
    (work / "cfg").mkdir(parents=True)
    listing = {b"cfg/x": Entry("f", hashlib.sha256(b"x").hexdigest())}
    placed(work, listing, lambda: (work / "cfg" / "x").write_text("x"))
    change = SyncPlan(os.fsencode(work), Manifest(os.fsencode(work)), {})
    assert change.deletions == [b"cfg/x"]
    (work / "cfg").rename(master)
    (work / "cfg").symlink_to(master)
    change.begin()
    assert (master / "x").read_text() == "x"


def test_files_that_are_set_aside_within_one_second_are_all_kept(
    tmp_path: Path, wanted: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    monkeypatch.setattr(time, "strftime", lambda *_: "20270115T080000")
    placed(work, wanted, lambda: (work / "a.py").write_text("A = 1\n"))
    for number in range(3):
        (work / "a.py").write_text(f"edit {number}\n")
        change = SyncPlan(os.fsencode(work), Manifest(os.fsencode(work)), wanted)
        change.begin()
    kept = sorted(path.read_text() for path in (work / ".clusterctl").rglob("a.py"))
    assert kept == ["edit 0\n", "edit 1\n", "edit 2\n"]


def test_what_python_compiled_of_a_file_that_changes_is_removed(tmp_path: Path) -> None:
    """Python takes it for fresh if the new file has the time and the size of the old one."""
    work, code = tmp_path / "work", ("v = 1\n", "v = 2\n")
    old, new = ({b"pkg/m.py": Entry("f", hashlib.sha256(c.encode()).hexdigest())} for c in code)
    (work / "pkg" / "__pycache__").mkdir(parents=True)
    placed(work, old, lambda: (work / "pkg" / "m.py").write_text(code[0]))
    cache = work / "pkg" / "__pycache__"
    for name in ("m.cpython-311.pyc", "m.cpython-311.opt-1.pyc", "mm.cpython-311.pyc", "m.txt"):
        (cache / name).write_text("")
    SyncPlan(os.fsencode(work), Manifest(os.fsencode(work)), new).begin()
    assert sorted(each.name for each in cache.iterdir()) == ["m.txt", "mm.cpython-311.pyc"]
