"""A node that lies about a run has nothing launched: real hosts, and a job that one has changed."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.cli.runs import Project, checkpoint
from tests.cli.test_json import validate

pytestmark = pytest.mark.netns

LIE = """
import glob, json
(path,) = glob.glob("/var/tmp/clusterctl-*/*/RUN/*/job.json")
job = json.load(open(path))
evil = ["sh", "-c", "echo PWNED >> PLACE; true {checkpoint}"]
job.update(argv=evil, name="prod", env_init="echo PWNED >> PLACE")
record = json.loads(job["launched"]["record"])
record["job"]["command"] = evil
job["launched"]["record"] = json.dumps(record)
json.dump(job, open(path, "w"))
"""
COMMAND = ["echo.py", "base"]


def write_job(project: Project, **job: object) -> None:
    document = yaml.safe_load(project.inventory.read_text())
    document["nodes"] = document["nodes"][:2]
    document["job"] = {
        "launcher": "direct",
        "checkpoints": "out",
        "resume_args": ["--from", "{checkpoint}"],
        **job,
    }
    project.inventory.write_text(yaml.safe_dump(document, sort_keys=False))


def rebuild(laptop: Project, name: str) -> bool:
    """Rebuild the records; tell whether that of this run is verified."""
    found = laptop.run("runs", "--discover", "--json")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    validate("runs", document)
    verified = {run["run"]: bool(run["verified"]) for run in document["runs"]}
    assert name in document["rebuilt"]
    assert (f"{name}: record rebuilt from the nodes, unverified" in found.stderr) is not verified[
        name
    ]
    return verified[name]


def test_one_lying_node_has_nothing_launched_from_any_machine(
    project: Project, tmp_path: Path
) -> None:
    write_job(project, command=COMMAND)
    launched = project.run("launch")
    assert launched.returncode == 0, launched.stderr
    assert launched.stderr.startswith("command: echo.py base\n")
    run = project.status()["run"]
    checkpoint(project.placed / "out", 10, run)
    pwned = project.placed / "pwned"
    lie = LIE.replace("RUN", run).replace("PLACE", f"{project.workdir}/pwned")
    lied = project.sandbox.on("node1", [sys.executable, "-c", lie])
    assert lied.returncode == 0, lied.stderr
    newest = f"{project.workdir}/out/step-000010"

    other = replace(project, state=tmp_path / "another-laptop")
    assert not rebuild(other, run)
    resumed = other.run("resume", run, "--checkpoint", "latest")
    assert resumed.returncode == 0, resumed.stderr
    assert f'["base", "--from", "{newest}"]' in resumed.stdout
    assert f"command: echo.py base --from {newest}\n" in resumed.stderr

    write_job(project)
    words = ("resume", run, "--checkpoint", "latest", "--no-check")
    refused = other.run(*words)
    assert refused.returncode == 2, refused.stderr
    assert f"error: {run} is unverified" in refused.stderr
    assert "error: node1: sh -c 'echo PWNED" in refused.stderr
    assert "error: node2: " in refused.stderr
    assert f"clusterctl {' '.join(words)} -- COMMAND '{{checkpoint}}'\n" in refused.stderr
    typed = other.run(*words, "--", "echo.py", "typed", "{checkpoint}")
    assert typed.returncode == 0, typed.stderr
    assert f'["typed", "{newest}"]' in typed.stdout

    # The machine that launched it has lost the record, and not its key.
    shutil.rmtree(project.state / project.status()["cluster"] / run)
    assert rebuild(project, run)
    proven = project.run("resume", run, "--checkpoint", "latest")
    assert proven.returncode == 0, proven.stderr
    assert f'["base", "--from", "{newest}"]' in proven.stdout
    assert not pwned.exists()
