"""A folder that is not this user's own is not believed: /var/tmp is open to all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.node.run.processes import processes
from tests.node.conftest import Run

SLEEP = "import time; print('here'); time.sleep(300)"


def forge(run: Run) -> Path:
    """Make a run's folder as another user could, with an agent that tells that it ran."""
    folder = Path(run.paths().folder)
    folder.mkdir(parents=True)
    for parent in (folder, *list(folder.parents)[:3]):
        parent.chmod(0o700)
    told = run.folder / "ran"
    (folder / "agent.py").write_text(f"open({str(told)!r}, 'w').close()")
    (folder / "job.json").write_text(json.dumps({"lock": "x", "run": run.plan.run, "ranks": []}))
    (folder / "processes").write_text("{} {}\n".format(*processes.key_of(1)))
    return folder


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["owner", "mode", "link"])
def test_a_folder_that_others_made_or_may_write_is_as_if_absent(
    make_run: Callable[..., Run], tmp_path: Path, level: int, how: str
) -> None:
    if how == "owner" and os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    run = make_run(SLEEP)
    folder = forge(run)
    spoilt = [folder, *folder.parents][level]
    if how == "owner":
        os.chown(spoilt, 65534, 65534)
    elif how == "mode":
        spoilt.chmod(0o777)
    else:
        spoilt.rename(tmp_path / "elsewhere")
        spoilt.symlink_to(tmp_path / "elsewhere")
    for op in ("status", "tail"):
        error = run.call(0, op, run.where())[-1].head["error"]
        assert error["kind"] == "no-run"
        assert "is not a folder of this user alone" in error["message"]
    assert run.stop()["gone"]
    args = {"cluster": "test", "state": run.where()["state"]}
    assert run.call(0, "runs", args)[-1].head["runs"] == []
    assert not (run.folder / "ran").exists()


def test_an_agent_that_others_may_write_is_not_run(make_run: Callable[..., Run]) -> None:
    run = make_run(SLEEP)
    agent = forge(run) / "agent.py"
    agent.chmod(0o666)
    assert run.asked_status()["state"] == "starting"
    assert not (run.folder / "ran").exists()
    agent.rename(run.folder / "moved.py")
    agent.symlink_to(run.folder / "moved.py")
    assert run.asked_status()["state"] == "starting"
    assert not (run.folder / "ran").exists()


def test_nobody_else_may_read_anything_of_a_run(make_run: Callable[..., Run]) -> None:
    before = os.umask(0)
    try:
        run = make_run(SLEEP).start()
    finally:
        os.umask(before)
    run.wait_for_log(0, b"here")
    top = Path(str(run.where()["state"]))
    modes = {
        str(path.relative_to(top)): path.stat().st_mode & 0o077 for path in [top, *top.rglob("*")]
    }
    assert "reserve" in {Path(name).name for name in modes}
    assert not {name for name, mode in modes.items() if mode}
