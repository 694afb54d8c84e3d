"""Squatters: what others put at a name of ours is neither believed nor written through."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.checkpoints import origin
from clusterctl.node.mirror import sync_lock
from clusterctl.node.mirror.manifest import Manifest
from clusterctl.node.mirror.sync_diff import compare_tree, target_folder, write_new_file
from clusterctl.node.probe import tokens as tokens_module
from clusterctl.node.probe.tokens import Tokens
from clusterctl.node.run.files import stop_file
from clusterctl.node.run.files.run_paths import NodePaths

VICTIM = "a diary\n"
OTHER = 65534
"""Another user's number."""

LINK = CallChannel(io.BytesIO(), -1)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file elsewhere that must not change, and a folder in which nothing may appear."""
    elsewhere = tmp_path / "victim"
    elsewhere.mkdir()
    file = elsewhere / "diary"
    file.write_text(VICTIM)
    yield file
    assert file.read_text() == VICTIM
    assert list(elsewhere.iterdir()) == [file]


def make_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def make_link_to_folder(path: Path, victim: Path) -> None:
    path.symlink_to(victim.parent)


def make_link_to_nothing(path: Path, victim: Path) -> None:
    path.symlink_to(victim.parent / "nothing")


def make_hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def make_pipe(path: Path, _victim: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path, _victim: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


def make_file(path: Path, _victim: Path) -> None:
    path.write_text("mine")


def make_open_folder(path: Path, _victim: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


Squat = Callable[[Path, Path], None]
SQUATS = [
    make_file,
    make_hard_link,
    make_link,
    make_link_to_folder,
    make_link_to_nothing,
    make_open_folder,
    make_pipe,
    make_socket,
]


@pytest.mark.parametrize("level", ["", "lab", "lab/lab-1"])
@pytest.mark.parametrize("squat", SQUATS)
def test_a_squatted_state_folder_is_named_with_its_owner(
    tmp_path: Path, victim: Path, squat: Squat, level: str
) -> None:
    state = tmp_path / "state"
    place = state / level
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for parent in (state, state / "lab"):
        if parent.exists():
            parent.chmod(0o700)
    squat(place, victim)
    if os.getuid() == 0:
        os.chown(place, OTHER, OTHER, follow_symlinks=False)
    args = {"cluster": "lab", "run": "lab-1", "node": "n", "state": str(state)}
    with pytest.raises(OperationError) as caught:
        NodePaths.of(args).create()
    assert caught.value.kind == "state-folder"
    assert str(place) in str(caught.value)
    if os.getuid() == 0:
        assert " of user nobody, mode " in str(caught.value)
    assert "`state:`" in str(caught.value.details["hint"])
    assert origin._runs_here(args) == {}
    if os.getuid() == 0:
        os.chown(place, 0, 0, follow_symlinks=False)


def test_a_pipe_in_a_folder_of_another_user_is_not_read(tmp_path: Path) -> None:
    folder_ = tmp_path / "lab" / "lab-1" / "n"
    folder_.mkdir(parents=True)
    folder_.chmod(0o777)
    os.mkfifo(folder_ / "supervisor.json")  # to open it would wait for ever
    assert origin._runs_here({"state": str(tmp_path)}) == {}


@pytest.mark.parametrize("name", ["lock", "manifest.json", ".gitignore"])
@pytest.mark.parametrize("squat", [s for s in SQUATS if s not in {make_file, make_hard_link}])
def test_what_is_no_file_where_ours_belong_is_named(
    tmp_path: Path, victim: Path, squat: Squat, name: str
) -> None:
    (tmp_path / ".clusterctl").mkdir()
    squat(tmp_path / ".clusterctl" / name, victim)
    with pytest.raises(OperationError, match=rf"{name}: expected a file, found a \w+ of user"):
        target_folder({"workdir": str(tmp_path)})


@pytest.mark.parametrize("name", ["", "replaced", "seen", "tmp"])
@pytest.mark.parametrize("squat", [s for s in SQUATS if s is not make_open_folder])
def test_what_is_no_folder_where_ours_belong_is_named(
    tmp_path: Path, victim: Path, squat: Squat, name: str
) -> None:
    if name:
        (tmp_path / ".clusterctl").mkdir()
    squat(tmp_path / ".clusterctl" / name, victim)
    args = {"workdir": str(tmp_path), "tree": "0", "token": "t"}
    with pytest.raises(OperationError, match="expected a folder, found a") as caught:
        compare_tree(args, b"", LINK)
    assert caught.value.kind == "squatted"


@pytest.mark.parametrize("squat", [make_hard_link, make_link])
def test_nothing_is_written_through_what_has_the_name_of_a_new_file(
    tmp_path: Path, victim: Path, squat: Squat
) -> None:
    own = tmp_path / ".clusterctl"
    own.mkdir()
    for name in ("manifest.json.new", "token"):
        squat(own / name, victim)
    Manifest(os.fsencode(tmp_path)).write("tree", {})
    write_new_file(os.fsencode(own / "token"), "text")
    assert (own / "token").read_text() == "text"
    assert '"tree":"tree"' in (own / "manifest.json").read_text()


def test_a_lock_that_is_linked_to_a_file_elsewhere_locks_and_is_not_written(
    tmp_path: Path, victim: Path
) -> None:
    (tmp_path / ".clusterctl").mkdir()
    make_hard_link(tmp_path / ".clusterctl" / "lock", victim)
    root = os.fsencode(tmp_path)
    with sync_lock.hold_lock(root, {"sync": "1"}) as alone:
        assert alone
        with pytest.raises(OperationError, match="another sync"), sync_lock.hold_lock(root, {}):
            pass


@pytest.mark.parametrize("squat", SQUATS)
def test_a_squatted_token_is_not_seen_and_not_written_through(
    tmp_path: Path, victim: Path, squat: Squat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "WRITE_SECONDS", 60.0)
    tokens = Tokens("0123456789abcdef")
    squat(tmp_path / ".clusterctl-token-0.part", victim)
    (written,) = tokens.write([{"path": "/x", "folders": [str(tmp_path)], "name": "0"}])
    assert (written["folder"], written["words"]) == (None, "File exists")
    squat(tmp_path / ".clusterctl-token-1", victim)
    token = {"path": "/x", "folder": str(tmp_path), "name": "1", "writer": "w"}
    (seen,) = Tokens("0123456789abcdef").wait_for([token], 0.0)
    assert seen["seen"] is False


@pytest.mark.parametrize("squat", [s for s in SQUATS if s is not make_link_to_nothing])
def test_a_squatted_stop_file_is_seen_by_ranks_and_not_ours_to_remove(
    tmp_path: Path, victim: Path, squat: Squat
) -> None:
    squat(tmp_path / "STOP", victim)
    assert stop_file._create(str(tmp_path / "STOP")) == (0, False)


def test_a_stop_file_that_no_rank_would_see_is_a_problem(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_file, "LIMIT_SECONDS", 60.0)
    make_link_to_nothing(tmp_path / "STOP", victim)
    with pytest.raises(FileExistsError):
        stop_file.create(str(tmp_path), "STOP")
