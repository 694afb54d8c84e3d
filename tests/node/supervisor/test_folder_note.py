"""The note by which runs of other inventories see that this one writes to a folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.node.checkpoints import filesystem
from clusterctl.node.checkpoints.filesystem import Mount
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.processes.processes import Process, living_descendants
from clusterctl.node.supervisor.around import folder_note
from clusterctl.node.supervisor.around.folder_note import FolderNote
from tests.waiting import BUSY

RUN = "lab-20260102t000000-abcd"


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> EventLoop:
    monkeypatch.setattr(filesystem, "mount_of", lambda _: Mount("nfs4"))
    return EventLoop()


def job(folder: Path, **more: Any) -> NodeJob:
    known = {"run": RUN, "cluster": "lab", "name": "base", "user": "ada", "node_rank": 0}
    return cast("NodeJob", {**known, "workdir": str(folder), "checkpoints": "out", **more})


def run_until(loop: EventLoop, condition: Callable[[], object]) -> None:
    until = time.monotonic() + BUSY
    while not condition():
        assert time.monotonic() < until
        loop.run_once()


def test_it_is_written_at_once_and_at_the_end(loop: EventLoop, tmp_path: Path) -> None:
    note = tmp_path / f".out.{RUN}.clusterctl"
    began = [time.time() - 5]
    written = FolderNote(loop, job(tmp_path), lambda: began[0])
    written.start()
    run_until(loop, note.exists)
    ended: list[bool] = []
    run_until(loop, lambda: json.loads(note.read_text() or "{}"))
    began[0] -= 95  # as a finisher learns it
    run_until(loop, lambda: not written._pid)
    written.end(lambda: ended.append(True))
    assert not ended
    run_until(loop, lambda: ended)
    told = json.loads(note.read_text())
    assert (told["over"], told["name"], told["user"]) == (True, "base", "ada")
    assert told["age"] == pytest.approx(100, abs=10)


@pytest.mark.parametrize("more", [{"node_rank": 1}, {"checkpoints": ""}])
def test_another_node_and_a_run_without_checkpoints_write_none(
    loop: EventLoop, tmp_path: Path, more: dict[str, Any]
) -> None:
    written = FolderNote(loop, job(tmp_path, **more), time.time)
    written.start()
    ended: list[bool] = []
    written.end(lambda: ended.append(True))
    assert ended
    assert list(tmp_path.iterdir()) == []


def test_storage_that_hangs_delays_no_end_and_is_no_process_of_the_run(
    loop: EventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*_words: str, **_more: Any) -> bool:
        time.sleep(600)
        return True

    monkeypatch.setattr(folder_note, "keep_note", hangs)
    monkeypatch.setattr(folder_note, "END_SECONDS", 0.2)
    written = FolderNote(loop, job(tmp_path), time.time)
    ended: list[bool] = []
    written.end(lambda: ended.append(True))  # it takes END_SECONDS
    pid = written._pid
    own: list[Process] = [one for one in living_descendants() if one.pid == pid]
    assert written.without(own) == []
    run_until(loop, lambda: ended)
    written.start()
    assert written._pid
    written.end(lambda: ended.append(True))  # a write is under way
    assert len(ended) == 2
