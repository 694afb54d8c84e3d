"""What a node deletes of runs: the folders of those that are over, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.run.files import ray_folder
from clusterctl.node.run.operations import prune
from clusterctl.node.run.processes.boot import boot_id


def a_part(root: Path, run: str, **files: Any) -> Path:
    folder = root / "lab" / run / "n"
    folder.mkdir(parents=True, mode=0o700)
    for level in (root, root / "lab", root / "lab" / run, folder):
        level.chmod(0o700)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def removed(root: Path, run: str) -> str:
    return prune.delete_run_folder({"cluster": "lab", "node": "n", "state": str(root), "run": run})


JOB = {"run": "old", "node": "n", "lock": "clusterctl-test-of-prune"}


def test_an_ended_part_goes_with_the_runs_folder(tmp_path: Path) -> None:
    a_part(tmp_path, "old", job=JOB, end={"state": "finished"})
    assert removed(tmp_path, "old") == ""
    assert list((tmp_path / "lab").iterdir()) == []
    assert removed(tmp_path, "old") == ""


def test_the_short_name_of_a_killed_ray_goes_with_it(tmp_path: Path) -> None:
    folder = a_part(tmp_path, "old", job=JOB, end={"state": "finished"})
    short = Path(ray_folder.make(str(folder)))
    try:
        assert removed(tmp_path, "old") == ""
        assert not short.parent.exists()
    finally:
        shutil.rmtree(short.parent, ignore_errors=True)


def test_a_part_without_an_end_stays(tmp_path: Path) -> None:
    folder = a_part(tmp_path, "old", job=JOB)
    assert removed(tmp_path, "old") == "it has not ended here"
    assert folder.exists()


def test_a_part_that_a_reboot_ended_goes_and_one_of_this_boot_stays(tmp_path: Path) -> None:
    a_part(tmp_path, "old", job={**JOB, "boot_id": "another"})
    assert removed(tmp_path, "old") == ""
    a_part(tmp_path, "old", job={**JOB, "boot_id": boot_id()})
    assert removed(tmp_path, "old") == "it has not ended here"


@pytest.mark.parametrize("run", ["..", ".", "", "../old", "/tmp", "lab/old", "old/.."])
def test_a_name_leads_nowhere_else(tmp_path: Path, run: str) -> None:
    folder = a_part(tmp_path, "old", job=JOB, end={"state": "finished"})
    assert removed(tmp_path, run) == "its name is none of a run"
    assert folder.exists()


def test_a_folder_that_others_may_write_is_left_alone(tmp_path: Path) -> None:
    folder = a_part(tmp_path, "old", job=JOB, end={"state": "finished"})
    folder.chmod(0o777)
    assert "is not a folder of this user alone" in removed(tmp_path, "old")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "lab" / "evil").mkdir(mode=0o700)
    (tmp_path / "lab" / "evil" / "n").symlink_to(elsewhere)
    assert "is not a folder of this user alone" in removed(tmp_path, "evil")
    assert elsewhere.exists()
