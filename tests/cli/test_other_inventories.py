"""Runs of two inventories that share one folder of checkpoints never take the other's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.cli.runs import Project
from tests.waiting import wait_until

SAVES = """
import json, os, pathlib, struct, sys, time

begin, period, last = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
out = pathlib.Path(os.environ["OUT"])
out.mkdir(exist_ok=True)
print("begins", sys.argv[4:], flush=True)
for step in range(begin, last, 10):
    time.sleep(period)
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    new = out / f".new-{step}"
    new.mkdir()
    (new / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"data")
    new.rename(out / f"step-{step}")
sys.exit(int(os.environ.get("CODE", "0")))
"""


def as_owner(project: Project, owner: str, host: str, *command: str) -> Project:
    """Return the project as somebody has it who knows one host, and calls it otherwise."""
    document = yaml.safe_load(project.inventory.read_text())
    shared = document["shared"][0]
    document["cluster"] = owner
    document["nodes"] = [{"host": host}]
    document["workdir"] = f"{project.workdir}/{owner}"
    document["job"] = {
        "launcher": "direct",
        "command": ["saves.py", *command],
        "checkpoints": f"{shared}/{Path(project.workdir).name}/out",
        "env": {"OUT": f"{shared}/{Path(project.workdir).name}/out"},
        "resume_args": ["--from", "{checkpoint}"],
        "restart": {"max": 1},
    }
    folder = project.folder / owner
    folder.mkdir()
    (folder / "saves.py").write_text(SAVES)
    inventory = folder / "hosts.yaml"
    inventory.write_text(yaml.safe_dump(document))
    return replace(project, folder=folder, inventory=inventory, state=folder / "state")


@pytest.mark.netns
def test_a_restart_and_the_status_leave_the_other_runs_checkpoints_alone(project: Project) -> None:
    his = as_owner(project, "beta", "node2", "1000", "0.1", "100000")
    mine = as_owner(project, "alpha", "node1", "10", "0.5", "50")
    answer = his.run("launch", "--detach")
    assert answer.returncode == 0, answer.stderr
    his_run = answer.stdout.strip()
    try:
        note = project.placed / f".out.{his_run}.clusterctl"
        wait_until(note.exists)
        answer = mine.run("launch", "--env", "CODE=3")
        err = " ".join(answer.stderr.split())
        assert f"{his_run}, launched from another inventory, writes its checkpoints to" in err
        assert "--from" not in answer.stdout
        assert f"{his_run} ran then, too, and nothing says which run wrote it" in err
        assert mine.status()["checkpoint"] is None
    finally:
        his.run("stop", "--grace", "0")
    assert '"over":true' in note.read_text()
    # Nobody else writes there now, so what the next run saves is its own.
    answer = mine.run("launch", "--env", "CODE=0", "--", "saves.py", "200010", "0.1", "200050")
    assert answer.returncode == 0, answer.stderr
    assert "another inventory" not in answer.stderr
    assert mine.status()["checkpoint"]["step"] == 200040
