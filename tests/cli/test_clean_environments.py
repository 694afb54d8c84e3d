"""Everything runs in an environment that has only what its page tells people to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from clusterctl.cli.shared.verbs import VERBS
from tests.clean_venv import install
from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox
from tests.installed import LOCATION
from tests.waiting import BUSY

pytestmark = [pytest.mark.netns, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
RAY = """
import ray
ray.init(logging_level="ERROR")
print("nodes", len(ray.nodes()), flush=True)
"""
TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.ones(1)
dist.all_reduce(ranks)
print("ranks", int(ranks), flush=True)
dist.destroy_process_group()
"""
ACCELERATE = """
import accelerate
state = accelerate.PartialState(cpu=True)
state.wait_for_everyone()
print("ranks", state.num_processes, flush=True)
"""
DIRECT = """
import os
print("ranks", os.environ["WORLD_SIZE"], flush=True)
"""


def launched_in(project: Project, launcher: str, program: str, *packages: str) -> str:
    """Launch a program on two nodes whose Python has these packages; return what it prints."""
    install(project.sandbox.shared / "venv", *packages)
    (project.folder / "program.py").write_text(program)
    document = yaml.safe_load(project.inventory.read_text())
    document["defaults"]["python"] = "/shared/venv/bin/python"
    document["nodes"] = document["nodes"][:2]
    project.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    done = project.run("launch", "--launcher", launcher, "--", "program.py", seconds=BUSY)
    assert done.returncode == 0, done.stdout + done.stderr
    return project.run("logs", "--raw").stdout


@pytest.fixture
def project(make_sandbox: MakeSandbox, make_project: MakeProject) -> Project:
    """A project on two hosts, which share the folder of the environment."""
    return make_project(make_sandbox(nodes=2))


@pytest.mark.soak
def test_clusterctl_needs_only_what_it_installs(tmp_path: Path) -> None:
    python = install(tmp_path / "venv", str(ROOT))
    for verb in VERBS:
        argv: list[str | Path] = [python, "-I", "-m", "clusterctl", verb, "--help"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
    make: list[str | Path] = [python, "-I", "-m", "clusterctl", "init", "--with-train"]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
    assert (tmp_path / "train" / "requirements.txt").exists()


@pytest.mark.soak
def test_the_training_program_needs_only_its_requirements(tmp_path: Path) -> None:
    python = install(tmp_path / "venv", "--requirement", str(requirements(tmp_path)))
    for words in (
        ("train.tools.demo_assets", "demo"),
        ("train", "--config", "demo/config.yaml", "--max-steps", "1"),
        ("train.tools.plot", "demo/output"),
    ):
        subprocess.run([python, "-m", *words], check=True, cwd=tmp_path)


def requirements(folder: Path) -> Path:
    """Let `init --with-train` write the program and what it needs; return the second."""
    make = [sys.executable, "-m", "clusterctl", "init", "--with-train"]
    subprocess.run(make, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(LOCATION)})
    return folder / "train" / "requirements.txt"


@pytest.mark.soak  # test_ray.py has a training with the same package among others
def test_ray_runs_with_what_pip_install_ray_installs(project: Project) -> None:
    document = yaml.safe_load(project.inventory.read_text())
    small = ["--num-cpus=1", "--object-store-memory=80000000"]
    document["job"] = {"launcher": "ray", "launcher_args": small}
    project.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    assert "nodes 2" in launched_in(project, "ray", RAY, "ray")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("launcher", "program", "packages"),
    [
        ("direct", DIRECT, ()),
        ("torchrun", TORCH, ("torch",)),
        ("accelerate", ACCELERATE, ("accelerate",)),
    ],
)
def test_a_launcher_runs_with_its_own_package(
    project: Project, launcher: str, program: str, packages: tuple[str, ...]
) -> None:
    printed = launched_in(project, launcher, program, *packages)
    assert printed.splitlines().count("ranks 2") == 2, printed
