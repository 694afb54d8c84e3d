"""Fixtures for tests of whole runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.runs import ECHO, JOB, Project

MakeProject = Callable[[Sandbox], Project]


@pytest.fixture
def make_project(tmp_path: Path) -> Iterator[MakeProject]:
    """Make a project for a sandbox; its runs are stopped and its files deleted from the hosts."""
    made: list[Project] = []

    def make(sandbox: Sandbox) -> Project:
        folder = tmp_path / "project"
        folder.mkdir()
        (folder / "job.py").write_text(JOB)
        (folder / "echo.py").write_text(ECHO)
        document = yaml.safe_load(sandbox.inventory.read_text())
        workdir = f"{document['shared'][0]}/{tmp_path.name}"
        inventory = tmp_path / "hosts.yaml"
        inventory.write_text(yaml.safe_dump(document | {"workdir": workdir}, sort_keys=False))
        made.append(
            Project(
                sandbox=sandbox,
                folder=folder,
                state=tmp_path / "state",
                inventory=inventory,
                workdir=workdir,
            )
        )
        return made[-1]

    yield make
    for project in made:
        project.close()
        # A sync of another project would refuse to delete them.
        shutil.rmtree(project.sandbox.shared / "code", ignore_errors=True)
        if project.sandbox.shared.exists():
            (project.sandbox.shared / "code").mkdir(exist_ok=True)


@pytest.fixture
def project(sandbox3: Sandbox, make_project: MakeProject) -> Project:
    """A project for three healthy hosts."""
    return make_project(sandbox3)
