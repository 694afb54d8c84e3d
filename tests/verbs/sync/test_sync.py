"""Mirroring a folder into real ones: what is placed, what is kept, what is proven."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.errors import LargeCopy, SyncRefused, UsageError
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.node.mirror.manifest import Manifest
from clusterctl.plan.lock import lock_name
from clusterctl.sync import mirror as transport_mirror
from clusterctl.sync.rsync import PushResult
from clusterctl.transport.connection import LocalConnection
from clusterctl.transport.interface import Call, Request
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import CopyProgress, Event, Notice, ignore
from clusterctl.verbs.sync import copying
from clusterctl.verbs.sync.result import SyncOptions, SyncResult
from clusterctl.verbs.sync.sync import sync

GIT = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "pkg" / "a.py").write_text("A = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a workdir, which is not there yet."""
    return tmp_path / "work"


def node(name: str, workdir: Path) -> Node:
    """Return a node that is this machine itself: the same agent, without sshd."""
    return Node(host="localhost", name=name, ssh=Ssh(), workdir=str(workdir), local=True)


def run_sync(cluster: Cluster, source: Path, **options: Any) -> tuple[SyncResult, list[Event]]:
    with Pool(cluster) as pool:
        events: list[Event] = []
        result = sync(cluster, pool, source, SyncOptions(**options), emit=events.append)
        return result, events


def mirrored(source: Path, workdir: Path, **options: Any) -> SyncResult:
    result, _ = run_sync(Cluster(name="t", nodes=(node("n", workdir),)), source, **options)
    return result


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".clusterctl" not in path.parts
    }


def test_a_new_workdir_gets_the_files(source: Path, work: Path) -> None:
    result = mirrored(source, work)
    assert [n.state for n in result.nodes] == ["updated"], result
    assert files(work) == files(source)
    assert os.access(work / "run.sh", os.X_OK)
    assert not os.access(work / "train.py", os.X_OK)
    again = mirrored(source, work)
    assert [n.state for n in again.nodes] == ["unchanged"]
    assert again.tree == result.tree
    assert again.exit_code == 0


def test_with_nothing_to_do_each_node_is_asked_one_question(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = (node("a", tmp_path / "a"), node("b", tmp_path / "b"))
    cluster = Cluster(name="t", nodes=nodes)
    assert run_sync(cluster, source)[0].ok
    asked: list[tuple[str, str]] = []
    real = LocalConnection.call

    def call(self: LocalConnection, request: Request, *, timeout: float = math.inf) -> Call:
        asked.append((self.node.name, request.op))
        return real(self, request, timeout=timeout)

    monkeypatch.setattr(LocalConnection, "call", call)
    monkeypatch.setattr(transport_mirror, "bring", forbidden)
    assert {n.state for n in run_sync(cluster, source)[0].nodes} == {"unchanged"}
    assert sorted(asked) == [("a", "sync-compare"), ("b", "sync-compare")]


def test_a_file_of_variables_is_named_when_it_is_copied(source: Path, work: Path) -> None:
    def warnings() -> list[str]:
        cluster = Cluster(name="t", nodes=(node("n", work),))
        _, events = run_sync(cluster, source)
        return [one.text for one in events if isinstance(one, Notice) and one.level == "warning"]

    (source / ".env.example").write_text("WANDB_API_KEY=\n")
    assert warnings() == []
    (source / ".env").write_text("WANDB_API_KEY=x\n")
    assert warnings() == [".env is on the nodes now; does it hold secrets?"]
    assert warnings() == []
    (source / ".clusterctlignore").write_text(".env\n")
    (source / "train.py").write_text("print(2)\n")
    assert warnings() == []


def test_the_code_of_another_folder_is_named_when_it_is_replaced(
    source: Path, work: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(source, other)
    mirrored(source, work)
    cluster = Cluster(name="t", nodes=(node("n", work),))
    told = []
    for folder, text in ((other, "1"), (source, "2"), (source, "3")):
        (folder / "train.py").write_text(text)
        _, events = run_sync(cluster, folder)
        told.append([one.text for one in events if isinstance(one, Notice)])
    assert told == [[f"its workdir had the code of {one} until now"] for one in (source, other)] + [
        []
    ]


def test_a_link_that_leads_out_of_the_folder_is_named_when_it_is_copied(
    source: Path, work: Path, tmp_path: Path
) -> None:
    def notes() -> list[str]:
        _, events = run_sync(Cluster(name="t", nodes=(node("n", work),)), source)
        return [one.text for one in events if isinstance(one, Notice)]

    (source / "inner").symlink_to("pkg/a.py")
    assert notes() == []
    (source / "data").symlink_to(tmp_path)
    told = "data leads out of this folder: the nodes get the link, not what it leads to"
    assert notes() == [told]
    assert notes() == []
    (source / "pkg" / "up").symlink_to("../../elsewhere")
    assert notes() == ["pkg/up" + told.removeprefix("data")]


def test_only_what_was_placed_is_deleted(source: Path, work: Path) -> None:
    (work / "pkg").mkdir(parents=True)
    (work / "pkg" / "theirs.py").write_text("mine\n")
    (work / "output").mkdir()
    (work / "output" / "checkpoint.bin").write_bytes(b"precious")
    mirrored(source, work)
    (source / "pkg" / "a.py").unlink()
    (source / "train.py").unlink()
    result = mirrored(source, work)
    assert result.nodes[0].deleted == 2
    assert files(work) == {
        "output/checkpoint.bin": b"precious",
        "pkg/theirs.py": b"mine\n",
        "run.sh": b"#!/bin/sh\n",
    }


def test_a_folder_that_is_empty_by_it_goes_too(source: Path, work: Path) -> None:
    mirrored(source, work)
    (source / "pkg" / "a.py").unlink()
    (source / "pkg").rmdir()
    (source / "pkg").write_text("a file now\n")
    assert mirrored(source, work).ok
    assert (work / "pkg").read_text() == "a file now\n"


def test_a_file_of_the_users_makes_way_and_is_kept(source: Path, work: Path) -> None:
    work.mkdir()
    (work / "train.py").write_text("their own version\n")
    cluster = Cluster(name="t", nodes=(node("n", work),))
    result, events = run_sync(cluster, source)
    assert result.ok
    assert (work / "train.py").read_text() == "print(1)\n"
    assert result.nodes[0].set_aside == ("train.py",)
    (kept,) = (work / ".clusterctl" / "replaced").rglob("train.py")
    assert kept.read_text() == "their own version\n"
    assert [e.text for e in events if isinstance(e, Notice) and "train.py" in e.text]


def test_an_edit_on_the_node_is_kept_too(source: Path, work: Path) -> None:
    mirrored(source, work)
    (work / "train.py").write_text("edited there\n")
    (work / "pkg" / "a.py").write_text("edited there too\n")
    (source / "pkg" / "a.py").unlink()
    result = mirrored(source, work)
    assert set(result.nodes[0].set_aside) == {"train.py", "pkg/a.py"}
    assert (work / "train.py").read_text() == "print(1)\n"
    kept = {path.read_text() for path in (work / ".clusterctl" / "replaced").rglob("*.py")}
    assert kept == {"edited there\n", "edited there too\n"}


def test_an_equal_file_of_the_users_stays_theirs(source: Path, work: Path) -> None:
    work.mkdir()
    (work / "train.py").write_text("print(1)\n")
    first = mirrored(source, work)
    assert first.nodes[0].set_aside == ()
    assert first.nodes[0].sent == 2
    (source / "train.py").unlink()
    mirrored(source, work)
    assert (work / "train.py").exists()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_cannot_make_way_is_named_and_nothing_changes(
    source: Path, tmp_path: Path, work: Path, kind: str
) -> None:
    work.mkdir()
    if kind == "folder":
        (work / "train.py").mkdir()
        (work / "train.py" / "data").write_text("x")
    else:
        (tmp_path / "elsewhere").mkdir()
        (work / "pkg").symlink_to(tmp_path / "elsewhere")
    result = mirrored(source, work)
    assert result.nodes[0].state == "failed"
    assert ("train.py" if kind == "folder" else "pkg") in result.nodes[0].words
    assert result.exit_code == 1
    assert not (work / "run.sh").exists()
    assert not list(tmp_path.glob("elsewhere/*"))


HOSTILE = [
    "a b",
    "'q'",
    '"',
    "$HOME",
    "`id`",
    ";",
    "*",
    "-n",
    "#x",
    "new\nline",
    "é",
    "\udcff",
    "~x",
]


def test_odd_names_links_and_bytes(tmp_path: Path) -> None:
    source, work = tmp_path / "s p'a\"ce", tmp_path / "w o$r`k"
    source.mkdir()
    for name in HOSTILE:
        (source / name).write_text(name, errors="surrogateescape")
        folder = source / f"d{name}"
        folder.mkdir()
        (folder / name).write_bytes(b"\0\1")
    (source / "link").symlink_to("a b")
    (source / "dangling").symlink_to("/nowhere/at all")
    (source / "folder link").symlink_to("d*")
    result = mirrored(source, work)
    assert result.ok, result.nodes
    assert files(work) == files(source)
    assert str((work / "dangling").readlink()) == "/nowhere/at all"
    assert (work / "folder link").is_symlink()
    assert mirrored(source, work).nodes[0].state == "unchanged"


names = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8
).filter(lambda name: name not in {".", "..", ".git"} and len(name.encode()) < 100)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.dictionaries(names, st.binary(max_size=20), min_size=1), min_size=2, max_size=3))
def test_any_sequence_of_trees_is_mirrored(
    tmp_path_factory: pytest.TempPathFactory, trees: list[dict[str, bytes]]
) -> None:
    base = tmp_path_factory.mktemp("any")
    work = base / "work"
    work.mkdir()
    (work / "theirs--------").write_bytes(b"kept")
    for number, tree in enumerate(trees):
        source = base / f"source{number}"
        (source / "top").mkdir(parents=True)
        for name, content in tree.items():
            (source / "top" / name).write_bytes(content)
        (source / "always").touch()
        assert mirrored(source, work, delete=True).ok
        expected = {k: v for k, v in files(source).items() if not junk(k)}
        assert files(work) == {**expected, "theirs--------": b"kept"}


def junk(name: str) -> bool:
    return name.endswith("~")


def test_two_nodes_on_one_filesystem_get_the_files_once(source: Path, tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    nodes = (node("a", work), node("b", work), node("c", other))
    result, _ = run_sync(Cluster(name="t", nodes=nodes), source)
    assert [n.state for n in result.nodes] == ["updated", "shared", "updated"]
    assert files(work) == files(other) == files(source)
    assert not list((work / ".clusterctl").glob("seen/*"))


def test_the_folder_itself_is_recognized(source: Path, tmp_path: Path) -> None:
    before = files(source)
    nodes = (node("a", source), node("b", tmp_path / "work"))
    result, _ = run_sync(Cluster(name="t", nodes=nodes), source)
    assert [n.state for n in result.nodes] == ["source", "updated"]
    assert files(source) == before
    assert not (source / ".clusterctl").exists()


def test_an_interrupted_sync_is_repeated_without_a_word(
    source: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored(source, work)
    (source / "train.py").write_text("print(2)\n")
    (source / "new.py").write_text("new\n")
    (source / "pkg" / "a.py").unlink()

    def half(*_: Any) -> PushResult:
        (work / "new.py").write_text("new\n")
        return PushResult(code=12, words="connection unexpectedly closed")

    with monkeypatch.context() as patch:
        patch.setattr(transport_mirror, "bring", half)
        broken = mirrored(source, work)
    assert broken.nodes[0].state == "failed"
    assert "(12): connection unexpectedly closed" in broken.nodes[0].words
    (source / "new.py").write_text("newer\n")
    result = mirrored(source, work)
    assert result.ok
    assert result.nodes[0].set_aside == ()
    assert files(work) == files(source)


def test_git_says_what_belongs_to_the_code(source: Path, work: Path) -> None:
    git(source, "init", "-q")
    (source / ".gitignore").write_text("*.log\nbuild/\n!build/keep.txt\n")
    (source / "build").mkdir()
    (source / "build" / "keep.txt").write_text("tracked although ignored\n")
    (source / "deleted.py").write_text("x")
    git(source, "add", "-f", ".")
    git(source, "commit", "-qm", "first")
    (source / "deleted.py").unlink()
    (source / "noise.log").write_text("x")
    (source / "new.py").write_text("x")
    (source / "venv" / "lib").mkdir(parents=True)
    (source / "venv" / "pyvenv.cfg").write_text("")
    (source / "venv" / "lib" / "x.py").write_text("")
    (source / "out").mkdir()
    (source / "out" / "shard.pt").write_bytes(b"0")
    (source / "train.py").write_text("print(2)\n")
    job = Job(checkpoints=str(work / "out"))
    cluster = Cluster(name="t", nodes=(node("n", work),), job=job)
    result, _ = run_sync(cluster, source)
    assert set(files(work)) == {
        *(".gitignore", "build/keep.txt", "new.py", "pkg/a.py", "run.sh", "train.py")
    }
    assert result.commit == git(source, "rev-parse", "HEAD")
    assert result.dirty
    assert "+print(2)" in result.diff
    assert "# new file: 'new.py'" in result.diff


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *GIT, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("checkpoints", ["out-{run}", "./out-{run}/a", "{workdir}/out-{run}"])
def test_the_checkpoints_of_no_run_are_code(source: Path, work: Path, checkpoints: str) -> None:
    code = files(source)
    (source / "out-lab-1").mkdir()
    (source / "out-lab-1" / "step-1.pt").write_text("x")
    (source / "out-utils.py").write_text("x")
    job = Job(checkpoints=checkpoints.replace("{workdir}", str(work)))
    run_sync(Cluster(name="t", nodes=(node("n", work),), job=job), source)
    assert set(files(work)) == {*code, "out-utils.py"}


@pytest.mark.parametrize("checkpoints", ["{run}", "./{name}-out", "{workdir}/{run}/a"])
def test_checkpoints_that_may_be_any_folder_are_refused(
    source: Path, work: Path, checkpoints: str
) -> None:
    job = Job(checkpoints=checkpoints.replace("{workdir}", str(work)))
    with pytest.raises(UsageError, match="expected a folder of all runs in workdir"):
        run_sync(Cluster(name="t", nodes=(node("n", work),), job=job), source)
    assert not work.exists()


def test_an_ignore_file_leaves_out(source: Path, work: Path) -> None:
    (source / ".clusterctlignore").write_text("# data\n*.sh\n/pkg/\n")
    mirrored(source, work)
    assert set(files(work)) == {".clusterctlignore", "train.py"}


def test_a_node_without_workdir_is_a_usage_error(source: Path, tmp_path: Path) -> None:
    cluster = Cluster(name="t", nodes=(replace(node("n", tmp_path), workdir=None),))
    with pytest.raises(UsageError, match="n: workdir: expected"):
        run_sync(cluster, source)


def test_an_empty_folder_is_a_usage_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="nothing to sync"):
        mirrored(empty, tmp_path / "work")


def test_a_dead_node_leaves_the_others_synced(source: Path, work: Path) -> None:
    dead = Node(host="127.0.0.1", name="dead", ssh=Ssh(port=1), workdir="/nowhere")
    result, _ = run_sync(Cluster(name="t", nodes=(dead, node("n", work))), source)
    assert [n.state for n in result.nodes] == ["unreachable", "updated"]
    assert result.exit_code == 3
    assert files(work) == files(source)


def test_a_workdir_that_cannot_be_made(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = mirrored(source, tmp_path / "file" / "work")
    assert result.nodes[0].state == "failed"
    assert "Not a directory" in result.nodes[0].words


def test_a_damaged_manifest_makes_nothing_ours(source: Path, work: Path) -> None:
    mirrored(source, work)
    (work / ".clusterctl" / "manifest.json").write_text("{")
    (source / "train.py").unlink()
    assert mirrored(source, work).ok
    assert (work / "train.py").exists()


def test_an_unchanged_file_is_not_read_again(source: Path, work: Path) -> None:
    mirrored(source, work)
    manifest = Manifest(os.fsencode(work))
    manifest._written += 10**9  # as if the sync had been a second ago
    os.truncate(work / "train.py", 0)
    entry = manifest.current(b"train.py")
    assert entry is not None
    assert entry.digest != manifest.records[b"train.py"].digests[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clusterctl.node.mirror.manifest.digest_of", forbidden)
        assert manifest.current(b"run.sh") is not None


def forbidden(*_: object) -> Callable[[], None]:
    raise AssertionError("the file was read")


def answer_as_a_run(name: str, workdir: Path, stop: threading.Event) -> threading.Thread:
    """Hold a lock as a supervisor does, and answer who runs there."""
    door = socket.socket(socket.AF_UNIX)
    door.bind("\0" + name)
    door.listen()
    door.settimeout(0.05)

    def serve() -> None:
        with door:
            while not stop.is_set():
                try:
                    connection, _ = door.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.recv(4096)
                    who = {"run": "lab-1", "user": "ada", "workdir": str(workdir)}
                    connection.sendall(json.dumps(who).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_live_run_keeps_its_files(source: Path, tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    names = [f"n{os.getpid()}", f"m{os.getpid()}"]
    nodes = (node(names[0], work), node(names[1], other))
    cluster = Cluster(name="t", nodes=nodes, same_machine=True)
    assert run_sync(cluster, source)[0].ok
    stop = threading.Event()
    locks = [lock_name(cluster, one) for one in nodes]
    threads = [answer_as_a_run(lock, work, stop) for lock in locks]
    try:
        assert run_sync(cluster, source)[0].ok  # nothing to change, nothing to refuse
        (source / "train.py").write_text("print(2)\n")
        result, _ = run_sync(cluster, source)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [n.state for n in result.nodes] == ["failed", "updated"]
    assert "lab-1 of ada is running here" in result.nodes[0].words
    assert (work / "train.py").read_text() == "print(1)\n"
    assert (other / "train.py").read_text() == "print(2)\n"
    assert result.exit_code == 1


@pytest.fixture
def shared_with_a_run(source: Path, tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes with one workdir, synced once; a run works there on the second."""
    work = tmp_path / "work"
    names = [f"a{os.getpid()}", f"b{os.getpid()}"]
    nodes = tuple(node(name, work) for name in names)
    cluster = Cluster(name="t", nodes=nodes, same_machine=True)
    assert run_sync(cluster, source)[0].ok
    stop = threading.Event()
    thread = answer_as_a_run(lock_name(cluster, nodes[1]), work, stop)
    yield cluster
    stop.set()
    thread.join()


def test_a_run_on_a_node_that_was_left_out_keeps_the_shared_folder(
    source: Path, tmp_path: Path, shared_with_a_run: Cluster
) -> None:
    cluster = shared_with_a_run.with_nodes(shared_with_a_run.nodes[:1])
    assert run_sync(cluster, source)[0].ok  # nothing to change, nothing to refuse
    (source / "train.py").write_text("print(2)\n")
    (one,) = run_sync(cluster, source)[0].nodes
    assert one.state == "failed"
    assert f"lab-1 of ada is running on {cluster.left_out[0].name}, which shares" in one.words
    assert (tmp_path / "work" / "train.py").read_text() == "print(1)\n"
    assert not list((tmp_path / "work" / ".clusterctl").glob("seen/*"))


def test_a_run_on_one_of_two_nodes_keeps_the_folder_from_both(
    source: Path, tmp_path: Path, shared_with_a_run: Cluster
) -> None:
    (source / "train.py").write_text("print(2)\n")
    result, _ = run_sync(shared_with_a_run, source)
    assert [n.state for n in result.nodes] == ["failed", "failed"]
    assert "is running here" in result.nodes[1].words
    assert (tmp_path / "work" / "train.py").read_text() == "print(1)\n"


def test_a_run_in_the_source_itself_is_no_hindrance(
    source: Path, shared_with_a_run: Cluster
) -> None:
    here = tuple(replace(node, workdir=str(source)) for node in shared_with_a_run.nodes)
    result, _ = run_sync(shared_with_a_run.with_nodes(here), source)
    assert [n.state for n in result.nodes] == ["source", "source"]


def test_a_node_that_was_left_out_is_asked_only_before_a_change(source: Path, work: Path) -> None:
    dead = Node(host="127.0.0.1", name="dead", ssh=Ssh(port=1), workdir=str(work))
    cluster = Cluster(name="t", nodes=(node("n", work), dead)).with_nodes((node("n", work),))
    result, events = run_sync(cluster, source)
    assert result.ok
    (said,) = [event for event in events if isinstance(event, Notice)]
    assert (said.level, said.node) == ("warning", "dead")
    assert "cannot tell whether a run there" in said.text
    assert not [e for e in run_sync(cluster, source)[1] if isinstance(e, Notice)]


def test_two_syncs_do_not_meet_in_one_folder(source: Path, work: Path) -> None:
    (work / ".clusterctl").mkdir(parents=True)
    with (work / ".clusterctl" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = mirrored(source, work)
    assert result.nodes[0].state == "failed"
    assert "another sync writes here now" in result.nodes[0].words
    assert mirrored(source, work).ok


def test_a_file_that_changes_while_it_is_sent_is_not_called_done(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transport_mirror.bring

    def change_first(*words: Any) -> PushResult:
        (source / "train.py").write_text("changed meanwhile\n")
        return real(*words)

    monkeypatch.setattr(transport_mirror, "bring", change_first)
    result = mirrored(source, tmp_path / "work")
    assert result.nodes[0].state == "failed"
    assert "train.py" in result.nodes[0].words
    assert "sync again" in result.nodes[0].hint


def test_a_node_that_was_left_out_and_cannot_look_says_why(source: Path, tmp_path: Path) -> None:
    kept, odd = node("n", tmp_path / "work"), node("odd", Path("not/absolute"))
    cluster = Cluster(name="t", nodes=(kept, odd)).with_nodes((kept,))
    _, events = run_sync(cluster, source)
    (said,) = [event for event in events if isinstance(event, Notice)]
    assert said.node == "odd"
    assert said.text.endswith(
        "sync changes: workdir must be an absolute path and not /: not/absolute"
    )


def test_a_link_of_the_users_keeps_what_it_leads_to(source: Path, tmp_path: Path) -> None:
    work, master = tmp_path / "work", tmp_path / "master"
    mirrored(source, work)
    (work / "pkg").rename(master)
    (work / "pkg").symlink_to(master)
    (source / "pkg" / "a.py").unlink()
    result = mirrored(source, work)
    assert result.ok
    assert result.nodes[0].deleted == 0
    assert (master / "a.py").read_text() == "A = 1\n"
    (source / "pkg" / "a.py").write_text("A = 1\n")
    (master / "a.py").write_text("edited\n")
    mirrored(source, work)
    assert (master / "a.py").read_text() == "edited\n"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder as on another laptop: it has an inventory and no code."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "hosts.yaml").write_text("cluster: t\n")
    return folder


def test_a_folder_without_the_code_deletes_nothing(
    source: Path, work: Path, elsewhere: Path
) -> None:
    mirrored(source, work)
    before = files(work)
    with pytest.raises(SyncRefused) as refused:
        mirrored(elsewhere, work, launching=True)
    assert str(refused.value) == (
        f"this folder lacks 3 of 3 files that were synced from {socket.gethostname()}:{source}"
        " (n): pkg/a.py, run.sh, train.py"
    )
    assert refused.value.hint == (
        f"cd {source}, or --workdir DIR for another folder on the nodes,"
        " or --no-sync to run what is there, or --delete to delete them on the nodes"
    )
    assert files(work) == before
    assert mirrored(source, work).nodes[0].state == "unchanged"
    deleted = mirrored(elsewhere, work, delete=True).nodes[0]
    assert (deleted.deleted, deleted.deleted_paths) == (3, ("pkg/a.py", "run.sh", "train.py"))
    assert set(files(work)) == {"hosts.yaml"}


def test_a_file_of_the_command_is_not_deleted(source: Path, work: Path) -> None:
    mirrored(source, work)
    (source / "run.sh").unlink()
    with pytest.raises(SyncRefused, match=r"run\.sh that the command needs"):
        mirrored(source, work, command=("bash", "run.sh"))
    (source / "pkg" / "a.py").unlink()
    with pytest.raises(SyncRefused, match=r"pkg/a\.py that the command needs"):
        mirrored(source, work, command=("-m", "pkg.a", "--out", "x"))
    assert (work / "run.sh").exists()
    assert mirrored(source, work, command=("train.py",)).nodes[0].deleted == 2


def test_most_of_what_was_placed_is_not_deleted(source: Path, work: Path) -> None:
    for number in range(20):
        (source / f"m{number}.py").write_text(f"# {number}\n")
    mirrored(source, work)
    before = files(work)
    for number in range(15):
        (source / f"m{number}.py").unlink()
    with pytest.raises(SyncRefused, match="lacks 15 of 23 files") as refused:
        mirrored(source, work)
    assert refused.value.hint == "--delete to delete them on the nodes"
    assert files(work) == before


def test_files_that_moved_are_not_missing(source: Path, work: Path, elsewhere: Path) -> None:
    mirrored(source, work)
    source.rename(elsewhere / "src")
    assert mirrored(elsewhere, work).nodes[0].deleted == 3
    assert files(work) == files(elsewhere)


def test_a_manifest_without_an_origin_still_protects(
    source: Path, work: Path, elsewhere: Path
) -> None:
    mirrored(source, work)
    path = work / ".clusterctl" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest.pop("from") == {"host": socket.gethostname(), "folder": str(source)}
    path.write_text(json.dumps(manifest))
    with pytest.raises(SyncRefused, match=r"lacks 3 of 3 files that were synced \(n\)") as refused:
        mirrored(elsewhere, work)
    assert str(refused.value.hint).startswith("cd to the folder of the code, or --delete")


def test_one_node_that_would_lose_its_files_keeps_all_as_they_are(
    source: Path, tmp_path: Path, elsewhere: Path
) -> None:
    nodes = (node("a", tmp_path / "a"), node("b", tmp_path / "b"))
    run_sync(Cluster(name="t", nodes=nodes[1:]), source)
    with pytest.raises(SyncRefused, match=r"\(b\)"):
        run_sync(Cluster(name="t", nodes=nodes), elsewhere)
    assert not files(tmp_path / "a")
    assert files(tmp_path / "b") == files(source)


def test_a_node_that_another_sync_holds_keeps_all_from_changing(
    source: Path, tmp_path: Path
) -> None:
    nodes = tuple(node(name, tmp_path / name) for name in ("a", "b", "c"))
    cluster = Cluster(name="t", nodes=nodes)
    assert run_sync(cluster, source)[0].ok
    (source / "train.py").write_text("print(2)\n")
    lock = tmp_path / "b" / ".clusterctl" / "lock"
    holder = {"sync": "s1", "user": "ada", "host": "laptop", "folder": "/home/ada/proj"}
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate()
        file.write(json.dumps({**holder, "since": 1_800_000_000.0}))
        file.flush()
        result, _ = run_sync(cluster, source)
    assert result.exit_code == 1
    states = {one.node: one.words for one in result.nodes}
    assert states["b"] == (
        "another sync writes here now: ada from laptop:/home/ada/proj,"
        " since 2027-01-15 08:00:00 UTC"
    )
    assert states["a"] == states["c"] == "not changed, because not all nodes could be"
    for name in "abc":
        assert (tmp_path / name / "train.py").read_text() == "print(1)\n"
    assert run_sync(cluster, source)[0].ok


def test_a_node_that_has_the_tree_is_held_until_all_have_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = tuple(node(name, tmp_path / name) for name in ("a", "b"))
    cluster = Cluster(name="t", nodes=nodes)
    assert run_sync(cluster, source)[0].ok
    (tmp_path / "b" / "train.py").write_text("edited\n")
    real = transport_mirror.bring
    others: list[SyncResult] = []

    def meanwhile(*words: Any) -> PushResult:
        other = tmp_path / "other"
        other.mkdir()
        (other / "train.py").write_text("print(3)\n")
        only_a = Cluster(name="t", nodes=nodes[:1])
        with monkeypatch.context() as patch:
            patch.setattr(transport_mirror, "bring", real)
            others.append(run_sync(only_a, other, delete=True)[0])
        return real(*words)

    monkeypatch.setattr(transport_mirror, "bring", meanwhile)
    result, _ = run_sync(cluster, source)
    assert [one.state for one in result.nodes] == ["unchanged", "updated"]
    assert [one.exit_code for one in others] == [1]
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(source)


def test_two_trees_at_once_never_leave_both_behind(source: Path, tmp_path: Path) -> None:
    nodes = tuple(node(name, tmp_path / name) for name in ("a", "b", "c"))
    cluster = Cluster(name="t", nodes=nodes)
    second = tmp_path / "second"
    shutil.copytree(source, second)
    for number in range(4):
        (source / "train.py").write_text(f"first {number}\n")
        (second / "train.py").write_text(f"second {number}\n")
        results: list[SyncResult] = []

        def run(folder: Path, results: list[SyncResult] = results) -> None:
            results.append(run_sync(cluster, folder)[0])

        threads = [threading.Thread(target=run, args=(f,)) for f in (source, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 2
        have = {(tmp_path / name / "train.py").read_text() for name in "abc"}
        assert any(result.ok for result in results), results
        assert len(have) == 1


def test_an_interrupt_while_files_are_sent_leaves_no_token(
    source: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, done = threading.Event(), threading.Event()

    def never(*_: Any) -> PushResult:
        sending.set()
        done.wait(60)
        return PushResult(code=20, words="interrupted")

    monkeypatch.setattr(transport_mirror, "bring", never)
    cluster = Cluster(name="t", nodes=(node("n", work),))
    with Pool(cluster) as pool:
        real = pool.mirror

        def interrupted(placements: Any) -> Iterator[Any]:
            threading.Thread(target=lambda: list(real(placements)), daemon=True).start()
            assert sending.wait(60)
            raise KeyboardInterrupt
            yield

        monkeypatch.setattr(pool, "mirror", interrupted)
        try:
            with pytest.raises(KeyboardInterrupt):
                sync(cluster, pool, source, emit=ignore)
            assert not list((work / ".clusterctl").glob("seen/*"))
        finally:
            done.set()


def test_tokens_of_a_sync_that_was_cut_off_are_removed_later(source: Path, work: Path) -> None:
    seen = work / ".clusterctl" / "seen"
    seen.mkdir(parents=True)
    (seen / "old").touch()
    os.utime(seen / "old", (1_000_000_000, 1_000_000_000))
    assert mirrored(source, work).ok
    assert not seen.exists()


def test_a_file_that_vanishes_while_it_is_sent_is_named_as_ours(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transport_mirror.bring

    def vanish_first(*words: Any) -> PushResult:
        (source / "train.py").unlink()
        return real(*words)

    monkeypatch.setattr(transport_mirror, "bring", vanish_first)
    (one,) = mirrored(source, tmp_path / "work").nodes
    assert one.words == "changed here while it was sent: train.py"
    assert one.hint == "sync again when nothing writes to this folder"


def kept_lines(events: list[Event]) -> list[str]:
    found = [event for event in events if isinstance(event, Notice) and "so kept" in event.text]
    return [f"{notice.node}: {notice.text}" for notice in found]


@pytest.mark.parametrize("git", [False, True])
def test_what_is_newly_ignored_and_still_here_stays_on_the_nodes(
    source: Path,
    tmp_path: Path,
    git: bool,  # noqa: FBT001
) -> None:
    (source / "weights").mkdir()
    (source / "weights" / "w.bin").write_bytes(b"precious")
    (source / "old.py").touch()
    cluster = Cluster(name="t", nodes=(node("a", tmp_path / "a"), node("b", tmp_path / "b")))
    if git:
        subprocess.run(["git", *GIT, "init", "-q", str(source)], check=True)
    assert run_sync(cluster, source)[0].ok
    (tmp_path / "b" / "weights" / "w.bin").write_bytes(b"edited there")
    (source / (".gitignore" if git else ".clusterctlignore")).write_text("weights\n")
    (source / "old.py").unlink()
    result, events = run_sync(cluster, source)
    assert [(n.state, n.deleted, n.set_aside) for n in result.nodes] == [("updated", 1, ())] * 2
    assert (tmp_path / "a" / "weights" / "w.bin").read_bytes() == b"precious"
    assert (tmp_path / "b" / "weights" / "w.bin").read_bytes() == b"edited there"
    assert not (tmp_path / "a" / "old.py").exists()
    text = "no longer synced, but still in this folder, so kept there as last synced: weights/w.bin"
    assert kept_lines(events) == [f"a,b: {text}"]
    # From now on it is the node's own, as all that no sync placed.
    again, events = run_sync(cluster, source)
    assert [n.state for n in again.nodes] == ["unchanged"] * 2
    assert not kept_lines(events)
    (source / "weights" / "w.bin").unlink()
    (source / "new.py").touch()
    assert run_sync(cluster, source)[0].ok
    assert (tmp_path / "a" / "weights" / "w.bin").exists()


def test_what_was_still_here_when_all_agreed_stays_though_it_goes_now(
    source: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node deletes what nobody counted, and what a line calls kept."""
    (source / "w.bin").write_bytes(b"precious")
    mirrored(source, work)
    (source / ".clusterctlignore").write_text("w.bin\n")
    agreed = transport_mirror._agreed

    def agreed_then_removed(*args: Any) -> bool:
        verdict = agreed(*args)
        (source / "w.bin").unlink()
        return verdict

    monkeypatch.setattr(transport_mirror, "_agreed", agreed_then_removed)
    result, events = run_sync(Cluster(name="t", nodes=(node("a", work),)), source)
    assert [one.deleted for one in result.nodes] == [0]
    assert (work / "w.bin").read_bytes() == b"precious"
    assert len(kept_lines(events)) == 1


def test_a_path_behind_a_new_link_is_not_still_here(
    source: Path, tmp_path: Path, work: Path
) -> None:
    mirrored(source, work)
    (source / "pkg").rename(tmp_path / "elsewhere")
    (source / "pkg").symlink_to(tmp_path / "elsewhere")
    assert mirrored(source, work).ok
    assert (work / "pkg").is_symlink()


def test_a_large_copy_is_announced_asked_about_and_shown(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(name="t", nodes=(node("a", tmp_path / "a"), node("b", tmp_path / "b")))
    (source / "weights.bin").write_bytes(os.urandom(3 << 20))
    monkeypatch.setattr(copying, "ANNOUNCED", 1 << 20)
    monkeypatch.setattr(copying, "LARGE", 2 << 20)
    monkeypatch.setattr(copying, "TICK_SECONDS", 0.001)
    with pytest.raises(LargeCopy) as refused:
        run_sync(cluster, source)
    much = "3.1 MB in 4 files to each of 2 nodes; the largest is weights.bin, 3.1 MB"
    assert str(refused.value) == f"this sync would copy {much}"
    assert (refused.value.hint or "").startswith("copy it: --yes\n")
    assert files(tmp_path / "a") == files(tmp_path / "b") == {}
    asked: list[str] = []

    def answer(error: LargeCopy) -> bool:
        asked.append(str(error))
        return True

    result, events = run_sync(cluster, source, may_copy=answer)
    assert result.ok
    assert asked == [f"this sync would copy {much}"]
    assert [e.text for e in events if isinstance(e, Notice)] == [f"copying {much}"]
    shown = [event for event in events if isinstance(event, CopyProgress)]
    assert {one.total for one in shown} == {2 * sum(map(len, files(source).values()))}
    assert all(0 <= one.done <= one.total for one in shown)
    assert shown[-1].done == shown[-1].total
    (source / "train.py").write_text("print(2)\n")
    result, events = run_sync(cluster, source)  # only what is missing counts
    assert result.ok
    assert not [event for event in events if isinstance(event, Notice | CopyProgress)]


def test_much_to_read_is_announced_before_it_is_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "weights.bin").write_bytes(os.urandom(3 << 20))
    monkeypatch.setattr(copying, "MUCH_READ", 2 << 20)
    cluster = Cluster(name="t", nodes=(node("a", tmp_path / "a"),))
    _, events = run_sync(cluster, source)
    notice = events[0]
    assert isinstance(notice, Notice)
    assert notice.text == "reading 3.1 MB in 4 files here; the largest is weights.bin, 3.1 MB"
    assert "clusterctl push" in notice.hint
