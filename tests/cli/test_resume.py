"""Runs that go on from a checkpoint, and what of the person's reaches the job to the letter."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox

pytestmark = [pytest.mark.netns, pytest.mark.timeout(180)]

EVIL = (
    "two words",
    "it's",
    'say "hi"',
    "$HOME ${HOME} $(id) `id`",
    "a;b|c&d>e<f",
    "*.py [a-z]? {x,y} ~ !! #no",
    "line\nbreak\ttab",
    '{"json": [1, "two"], "back\\\\slash": null}',
    "",
    "ünïcödé 漢字 🙂",
    "-n",
    "%s %d \\n",
    "' \" \\",
)


def checkpoint(folder: Path, step: int) -> Path:
    """Write a checkpoint as the training program does."""
    path = folder / f"step-{step:06d}"
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(b"shard of step %d" % step * 100)
    files = {
        file.name: {
            "size": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in path.iterdir()
    }
    manifest = path / "MANIFEST.json"
    manifest.write_text(json.dumps({"schema": 1, "step": step, "files": files}))
    (path / "COMPLETE").write_text(hashlib.sha256(manifest.read_bytes()).hexdigest() + "\n")
    return path


def lose_a_shard(path: Path) -> None:
    (path / "__0_0.distcp").unlink()


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[7] ^= 1
    (path / "__0_0.distcp").write_bytes(data)


@pytest.fixture
def trained(project: Project) -> Project:
    """A project whose job has run once, with two checkpoints on the shared folder."""
    inventory = project.sandbox.inventory.read_text()
    (project.folder / "hosts.yaml").write_text(
        inventory
        + "job:\n  launcher: direct\n  command: [echo.py, base]\n  checkpoints: out\n"
        + '  resume_args: [--from, "{checkpoint}"]\n'
    )
    shutil.rmtree(project.sandbox.shared / "code" / "out", ignore_errors=True)
    for step in (10, 20):
        checkpoint(project.sandbox.shared / "code" / "out", step)
    answer = project.run("launch", "-i", "hosts.yaml")
    assert answer.returncode == 0, answer.stderr
    return project


def resume(project: Project, which: str, *words: str) -> tuple[int, str, str]:
    answer = project.run("resume", "-i", "hosts.yaml", "--checkpoint", which, *words)
    return answer.returncode, answer.stdout, answer.stderr


def test_resume_from_the_latest_says_what_it_took_and_that_the_code_changed(
    trained: Project,
) -> None:
    (trained.folder / "more.py").write_text("")
    code, stdout, stderr = resume(trained, "latest", "--nodes", "2")
    assert code == 0, stderr
    assert '["base", "--from", "/shared/code/out/step-000020"]' in stdout
    assert "checkpoint /shared/code/out/step-000020 (clusterctl, step 20)" in stderr
    assert "the code is not the one that the run was launched with" in stderr
    newest = json.loads(trained.run("runs", "--json").stdout)["runs"][0]
    assert newest["checkpoint"] == "/shared/code/out/step-000020"
    assert newest["nodes"] == ["node1", "node2"]


def test_what_the_inventory_says_of_checkpoints_since_the_launch_counts(project: Project) -> None:
    hosts = project.folder / "hosts.yaml"
    job = "job:\n  launcher: direct\n  command: [echo.py, base]\n"
    hosts.write_text(project.sandbox.inventory.read_text() + job)
    here = {"CLUSTERCTL_INVENTORY": "hosts.yaml"}
    assert project.run("launch", env=here).returncode == 0
    refused = project.run("resume", "--checkpoint", "latest", env=here)
    assert refused.returncode == 2
    assert "job.resume_args: wanted {checkpoint}" in refused.stderr
    shutil.rmtree(project.sandbox.shared / "code" / "later", ignore_errors=True)
    checkpoint(project.sandbox.shared / "code" / "later", 30)
    job += '  checkpoints: later\n  resume_args: [--from, "{checkpoint}"]\n'
    hosts.write_text(project.sandbox.inventory.read_text() + job)
    answer = project.run("resume", "--checkpoint", "latest", env=here)
    assert answer.returncode == 0, answer.stderr
    assert '["base", "--from", "/shared/code/later/step-000030"]' in answer.stdout
    assert "job.checkpoints and job.resume_args: the inventory's" in answer.stderr


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(lose_a_shard, "__0_0.distcp is missing"), (flip_a_bit, "__0_0.distcp is changed")],
)
def test_a_spoilt_checkpoint_is_refused_and_only_latest_falls_back(
    trained: Project, spoil: Callable[[Path], None], why: str
) -> None:
    spoil(trained.sandbox.shared / "code" / "out" / "step-000020")
    code, _, stderr = resume(trained, "out/step-000020")
    assert code == 125
    assert why in stderr
    assert "hint: the newest complete one: --checkpoint /shared/code/out/step-000010" in stderr
    assert "Traceback" not in stderr
    code, stdout, stderr = resume(trained, "latest")
    assert code == 0, stderr
    assert "passed over: step-000020" in stderr
    assert "/shared/code/out/step-000010" in stdout


def test_a_checkpoint_that_is_not_there_is_refused(trained: Project) -> None:
    code, _, stderr = resume(trained, "nowhere/step-1")
    assert code == 125
    assert "there is no" in stderr


@pytest.mark.parametrize(
    "shells", [("bash+noise", "dash", "fish+noise"), ("zsh+noise", "tcsh", "sh")]
)
def test_arguments_and_values_arrive_to_the_letter(
    make_sandbox: MakeSandbox, make_project: MakeProject, shells: tuple[str, ...]
) -> None:
    sandbox: Sandbox = make_sandbox(nodes=3, shells=shells)
    project = make_project(sandbox)
    wanted = {f"EVIL_{number}": value for number, value in enumerate(EVIL)}
    env = [word for name, value in wanted.items() for word in ("--env", f"{name}={value}")]
    answer = project.launch(*env, "--json", "--", "echo.py", *EVIL)
    assert answer.returncode == 0, answer.stderr
    events = [json.loads(line) for line in answer.stdout.splitlines()]
    said = [json.loads(event["line"]) for event in events if event["kind"] == "line"]
    assert said == [[list(EVIL), wanted]] * 3
