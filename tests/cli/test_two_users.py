"""Two people on the same hosts: neither can stop, prune or hide the other's run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns


def of_bob(ada: Project, workdir: str | None = None) -> Project:
    """Return another person's project on the same hosts, with a workdir of its own by default."""
    root = ada.folder.parent
    document = yaml.safe_load(ada.sandbox.layout.inventory_of("bob").read_text())
    inventory = root / "hosts-bob.yaml"
    workdir = workdir or f"{ada.workdir}-of-bob"
    inventory.write_text(yaml.safe_dump(document | {"workdir": workdir}))
    folder = root / "project-of-bob"
    folder.mkdir(exist_ok=True)
    (folder / "job.py").write_text((ada.folder / "job.py").read_text())
    return replace(
        ada, folder=folder, state=root / "state-of-bob", inventory=inventory, workdir=workdir
    )


def test_a_run_and_a_folder_of_ada_are_out_of_bobs_reach(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    box = make_sandbox(nodes=1, users=("ada", "bob"))
    ada = make_project(box)
    bob = of_bob(ada)
    job = ("--launcher", "direct", "--no-check", "--env", "STEPS=6000", "--", "job.py")
    run = ada.run("launch", "--detach", *job).stdout.strip()
    ada.wait_for(run, "running")

    refused = bob.run("launch", *job)
    assert refused.returncode == 125
    assert f"the machine is busy: run {run} of user ada, since 20" in refused.stderr
    assert "hint: the node suggests: wait for it, ask user ada to stop it" in refused.stderr

    answer = bob.run("stop", run)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert f"run {run} is known neither here nor on the nodes" in answer.stderr
    for verb in (("status",), ("stop", "--all", "--grace", "0"), ("runs", "--prune", "0")):
        answer = bob.run(*verb)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    assert ada.status(run)["state"] == "running"

    assert ada.run("stop", run, "--grace", "0").returncode == 0

    for within in ("", "/of-bob"):
        bob = of_bob(ada, ada.workdir + within)
        (bob.folder / "more.py").write_text("")
        refused = bob.run("sync", "--delete")
        assert refused.returncode != 0
        assert "Permission denied" in refused.stderr
        assert f"as user ada, in a group of both: chmod -R g+rwX {ada.workdir}" in refused.stderr
