"""Each example is a whole project: its inventory loads, and its program runs on two hosts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from clusterctl.inventory import load
from tests.cli.conftest import MakeProject
from tests.conftest import MakeSandbox
from tests.waiting import BUSY

ROOT = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/hosts.yaml"))
SHORT = {
    "ddp": ("train.py", "--steps", "20"),
    "hf-trainer-lora": ("train.py", "--steps", "20"),
    "lightning": ("train.py", "--epochs", "2"),
    "accelerate": ("train.py", "--steps", "20"),
    "shell-script": ("bash", "train.sh", "20"),
}
"""The command of each that runs without a GPU and without data, made shorter."""


@pytest.mark.parametrize("name", FOLDERS)
def test_it_has_an_inventory_that_loads_and_a_page_that_the_list_names(name: str) -> None:
    cluster = load(ROOT / name / "hosts.yaml")
    assert cluster.job.command
    assert (ROOT / name / "README.md").read_text().startswith("# ")
    assert f"({name}/README.md)" in (ROOT / "README.md").read_text()


@pytest.mark.soak  # test_init_connects.py launches `ddp`
@pytest.mark.netns
@pytest.mark.torch
@pytest.mark.parametrize("name", SHORT)
def test_its_program_runs_on_two_hosts(
    name: str, make_sandbox: MakeSandbox, make_project: MakeProject, tmp_path: Path
) -> None:
    job = yaml.safe_load((ROOT / name / "hosts.yaml").read_text())["job"]
    for package in job.get("packages", ()):
        pytest.importorskip(package)
    project = make_project(make_sandbox(nodes=2))
    shutil.copytree(ROOT / name, project.folder, dirs_exist_ok=True)
    document = yaml.safe_load(project.inventory.read_text())
    job["env"] = {"OMP_NUM_THREADS": "1"}
    project.inventory.write_text(yaml.safe_dump({**document, "job": job}, sort_keys=False))
    done = project.run("launch", "--", *SHORT[name], seconds=2 * BUSY)
    assert done.returncode == 0, done.stderr
    raw = project.run("logs", "--raw").stdout.splitlines()
    (ended,) = [line for line in raw if line.startswith("ended at ")]
    assert ended.endswith(" on 2 ranks")
