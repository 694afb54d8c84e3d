"""Which run wrote a checkpoint is told from times on one clock."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.checkpoints import filesystem
from clusterctl.node.checkpoints.filesystem import clock_skew
from clusterctl.node.checkpoints.origin import Origin


def run_folder(state: Path, run: str, began: float, ended: float | None = None, **job: Any) -> None:
    folder = state / "c" / run / "n"
    folder.mkdir(parents=True)
    for parent in (state, state / "c", folder.parent, folder):
        parent.chmod(0o700)
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "supervisor.json").write_text(json.dumps({"began": began}))
    if ended:
        (folder / "end.json").write_text(json.dumps({"time": ended}))


def origin(tmp_path: Path, **args: Any) -> Origin:
    here = {"cluster": "c", "run": "two", "node": "n", "state": str(tmp_path / "state")}
    return Origin({**here, **args}, str(tmp_path))


def test_what_was_written_is_of_the_last_run_that_began_before(tmp_path: Path) -> None:
    run_folder(tmp_path / "state", "one", 100.0, 200.0, world_size=8)
    run_folder(tmp_path / "state", "two", 300.0, 400.0)
    run_folder(tmp_path / "state", "three", 500.0)
    found = origin(tmp_path)
    times = {50.0: "", 150.0: "one", 250.0: "", 350.0: "two", 450.0: "", 900.0: "three"}
    assert {moment: found.writer(moment).run for moment in times} == times
    assert [found.writer(moment).older for moment in (250.0, 350.0)] == [True, False]
    assert found.has_run
    assert (found.world_size("one"), found.world_size("two")) == (8, None)


def test_what_a_run_saved_in_its_grace_is_its_own(tmp_path: Path) -> None:
    run_folder(tmp_path / "state", "two", 300.0)
    end = tmp_path / "state" / "c" / "two" / "n" / "end.json"
    end.write_text(json.dumps({"time": 400.0, "over": 500.0}))
    assert [origin(tmp_path).writer(moment).run for moment in (450.0, 550.0)] == ["two", ""]


def test_a_checkpoint_that_says_its_run_is_believed(tmp_path: Path) -> None:
    run_folder(tmp_path / "state", "one", 100.0)
    assert origin(tmp_path).writer(150.0, "other").run == "other"


def test_of_a_run_that_was_elsewhere_the_controllers_clock_counts(tmp_path: Path) -> None:
    """The controller's clock is an hour behind this node's."""
    now = time.time()
    ancestors = [{"run": "two", "began": now - 3600 - 100, "world_size": 4}]
    found = origin(tmp_path, ancestors=ancestors, now=now - 3600)
    assert not found.has_run
    assert found.writer(now - 50).run == "two"
    assert found.writer(now - 150).run == ""
    assert found.world_size("two") == 4


def test_a_run_folder_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    run_folder(tmp_path / "state", "one", 100.0)
    (tmp_path / "state" / "c" / "one").chmod(0o777)
    assert origin(tmp_path).writer(150.0).run == ""


def test_a_storage_server_with_a_clock_of_its_own_is_allowed_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's clock stamps files; seen by a clock that is behind it is ahead."""
    assert clock_skew(str(tmp_path)) == 0.0
    assert clock_skew(str(tmp_path), lambda: time.time() - 100) == pytest.approx(100, abs=5)
    assert list(tmp_path.iterdir()) == []
    assert clock_skew(str(tmp_path / "nowhere"), lambda: time.time() - 100) == 0.0
    run_folder(tmp_path / "state", "two", 300.0, 400.0)
    monkeypatch.setattr(filesystem, "clock_skew", lambda _folder: 100.0)
    assert origin(tmp_path).writer(450.0).run == "two"
    assert origin(tmp_path).writer(350.0).run == ""


def test_a_run_beside_it_on_other_gpus_and_in_another_folder_wrote_nothing_here(
    tmp_path: Path,
) -> None:
    state, gpus = tmp_path / "state", "clusterctl-run/GPU-%s"
    run_folder(state, "two", 100.0, lock=gpus % 1, workdir="/w/two")
    run_folder(state, "beside", 200.0, lock=gpus % 2, workdir="/w/beside")
    assert origin(tmp_path).writer(300.0).run == "two"
    run_folder(state, "same-folder", 400.0, lock=gpus % 2, workdir="/w/two")
    assert origin(tmp_path).writer(500.0).run == "same-folder"
    run_folder(state, "whole-machine", 600.0, lock="clusterctl-run", workdir="/w/other")
    assert origin(tmp_path).writer(700.0).run == "whole-machine"


def test_what_was_written_while_two_runs_lived_in_one_folder_is_nobodys(tmp_path: Path) -> None:
    state, gpus = tmp_path / "state", "clusterctl-run/GPU-%s"
    run_folder(state, "two", 100.0, 500.0, lock=gpus % 1, workdir="/w")
    run_folder(state, "beside", 200.0, 300.0, lock=gpus % 2, workdir="/w")
    found = origin(tmp_path)
    assert [found.writer(moment).run for moment in (150.0, 250.0, 400.0)] == ["two", "", "two"]
    assert found.writer(250.0).beside == ("two", "beside")


def test_a_run_on_another_node_that_shares_the_folder_counts_too(tmp_path: Path) -> None:
    now = time.time()
    run_folder(tmp_path / "state", "two", now - 100)
    there = {"run": "elsewhere", "began": now - 60 - 3600, "ended": None, "live": True}
    found = origin(tmp_path, others=[there], now=now - 3600)
    assert found.writer(now - 80).run == "two"
    # The last one that began is there until its end is known.
    assert found.writer(now - 30).run == "elsewhere"
    (tmp_path / "state" / "c" / "two" / "n" / "end.json").write_text(json.dumps({"time": now}))
    assert origin(tmp_path, others=[there], now=now - 3600).writer(now - 30).beside == (
        "two", "elsewhere",
    )  # fmt: skip
    assert found.writer(now - 30, "two").recorded


def test_a_run_that_writes_its_checkpoints_elsewhere_wrote_none_here(tmp_path: Path) -> None:
    state = tmp_path / "state"
    run_folder(state, "two", 100.0, 200.0, workdir=str(tmp_path.parent), checkpoints=tmp_path.name)
    run_folder(state, "later", 300.0, workdir=str(tmp_path), checkpoints="../other")
    found = origin(tmp_path)
    assert [found.writer(moment).run for moment in (150.0, 350.0)] == ["two", ""]
    run_folder(state, "above", 400.0, checkpoints=str(tmp_path.parent))
    assert origin(tmp_path).writer(450.0).run == "above"
