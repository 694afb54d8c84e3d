"""`clusterctl setup` on real hosts: made once, completed, sent without a network, compared."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.cli.shared.main import main
from tests.cli.conftest import MakeProject
from tests.cli.hints import commands
from tests.cli.runs import Project
from tests.conftest import MakeSandbox
from tests.verbs.setup.wheelhouse import UV, write_wheel

VENV = "/root/job/env"
PRINT = "import alpha, beta; print(alpha.version, beta.version)"


@pytest.fixture
def fresh(make_sandbox: MakeSandbox, make_project: MakeProject) -> Project:
    """A project for two hosts whose `python:` is not there yet."""
    return with_python(make_project(make_sandbox(nodes=2)), f"{VENV}/bin/python")


def with_python(project: Project, python: str) -> Project:
    document = yaml.safe_load(project.inventory.read_text())
    document["defaults"]["python"] = python
    project.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    return project


def wheels_for(project: Project, folder: Path) -> None:
    write_wheel(folder, "alpha", "1.0", "beta")
    for version in ("2.0", "2.1"):
        write_wheel(folder, "beta", version)


def require(project: Project, *lines: str) -> None:
    """Write requirements that are met from a folder that the hosts share."""
    wheels_for(project, project.sandbox.shared / "wheels")
    text = ["--no-index", "--find-links /shared/wheels", *lines]
    (project.folder / "requirements.txt").write_text("\n".join(text))


def setup(project: Project, *words: str, **env: str) -> dict[str, Any]:
    # With the tests' own Python: the system's may lack the module venv.
    argv = ("setup", "--json", "--base", sys.executable, *words)
    done = project.run(*argv, env=env)
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, (document, done.stderr)
    return document


def states(document: dict[str, Any]) -> list[str]:
    return [node["state"] for node in document["nodes"]]


def install_uv(project: Project, *nodes: str) -> None:
    shutil.copy(UV, project.sandbox.shared / "uv")  # the hosts do not see all of this machine
    for node in nodes:
        place = ["install", "-D", "/shared/uv", "/root/.local/bin/uv"]
        project.sandbox.on(node, place, check=True)


@pytest.mark.netns
@pytest.mark.parametrize("tool", ["uv", pytest.param("pip", marks=pytest.mark.soak)])
def test_it_is_made_once_completed_and_leaves_other_files_alone(fresh: Project, tool: str) -> None:
    """By uv, which takes little; that pip makes one, a test below shows."""
    if tool == "uv":
        install_uv(fresh, "node1", "node2")
    require(fresh, "alpha", "beta==2.0")
    checked = fresh.run("check", "--only", "python.found")
    typed = next(commands(" ".join(checked.stdout.split())))
    assert (checked.returncode, typed) == (1, ("setup",))
    made = setup(fresh)
    assert states(made) == ["created", "created"]
    assert {node["packages"]["beta"] for node in made["nodes"]} == {"2.0"}
    assert states(setup(fresh)) == ["unchanged", "unchanged"]

    require(fresh, "gamma")
    failed = fresh.run("setup", "--base", sys.executable)
    assert failed.returncode == 1
    assert "node[1-2]: failed: cannot install the requirements: exit code 1" in failed.stderr
    assert re.search(r"^ *\| .*gamma", failed.stderr, re.MULTILINE), failed.stderr
    assert "ready on 0 of 2 nodes" in failed.stderr

    require(fresh, "alpha", "beta==2.1")
    assert states(setup(fresh, "--nodes", "node2")) == ["updated"]
    printed = fresh.run("exec", "--", f"{VENV}/bin/python", "-c", PRINT)
    assert printed.stdout == "node1\n1.0 2.0\nnode2\n1.0 2.1\n"
    checked = fresh.run("check", "--only", "python.found")
    assert checked.returncode == 0, checked.stdout

    # What was left half made is completed.
    fresh.run("exec", "--", "rm", f"{VENV}/.clusterctl-setup.json")
    fresh.run("exec", "--nodes", "node2", "--", "rm", f"{VENV}/bin/python")
    assert states(setup(fresh)) == ["updated", "updated"]
    other_files = f"rm -r {VENV}; mkdir {VENV}; touch {VENV}/mine"
    fresh.run("exec", "--nodes", "node2", "--", "sh", "-c", other_files)
    refused = fresh.run("setup", "--base", sys.executable)
    assert refused.returncode == 1
    assert "node1: /root/job/env is up to date" in refused.stderr
    assert f"node2: failed: {VENV} is a folder with other files" in refused.stderr
    kept = fresh.run("exec", "--nodes", "node2", "--", "ls", VENV)
    assert kept.stdout == "node2\nmine\n"

    fresh.sandbox.fault("node2", "sshd-killed")
    silent = fresh.run("setup", "--base", sys.executable)
    assert silent.returncode == 3
    assert "node2: unreachable: refused" in silent.stderr


@pytest.mark.netns
def test_uv_makes_a_shared_one_on_one_node(fresh: Project) -> None:
    with_python(fresh, f"{fresh.workdir}-env/bin/python")
    install_uv(fresh, "node1", "node2")
    require(fresh, "alpha", "beta==2.0")
    made = setup(fresh)
    assert states(made) == ["created", "shared"]
    assert made["nodes"][0]["packages"]["beta"] == "2.0"
    require(fresh, "alpha", "beta==2.1")
    assert states(setup(fresh)) == ["updated", "shared"]


@pytest.mark.netns
def test_wheels_are_sent_to_a_node_without_a_network(fresh: Project, tmp_path: Path) -> None:
    wheels_for(fresh, tmp_path / "here")
    (fresh.folder / "pyproject.toml").write_text("[project]\ndependencies = ['alpha']\n")
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "here")}
    made = setup(fresh, "--offline", "--nodes", "node1", **env)
    assert states(made) == ["created"]
    assert made["nodes"][0]["packages"].keys() >= {"alpha", "beta", "pip"}
    assert made["nodes"][0]["packages"]["beta"] == "2.1"
    left = fresh.run("exec", "--nodes", "node1", "--", "sh", "-c", "ls -d /tmp/clusterctl-setup-*")
    assert left.stderr.endswith("exit code 2 on 1 of 1 node\n")


def test_the_inventory_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.txt").write_text("alpha\n")
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text("cluster: lab\nnodes: [gpu01]\nworkdir: /code\n")
    words = ["setup", "-i", str(inventory), "--requirements", str(tmp_path / "r.txt")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "gpu01: expected `python:` to be PATH/bin/python" in said
    assert "defaults: {python: /code/.venv/bin/python}" in said
