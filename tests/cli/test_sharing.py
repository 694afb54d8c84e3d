"""Two runs on one machine, each with GPUs of its own."""

from __future__ import annotations

import pytest
import yaml

from clusterctl.sandbox.gpus import Gpus
from tests.cli.conftest import MakeProject
from tests.conftest import MakeSandbox

LONG = ("--env", "STEPS=6000")


@pytest.mark.netns
def test_runs_with_disjoint_gpus_share_a_machine(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=1, gpus=Gpus(model="H100", count=4)))
    inventory = yaml.safe_load(project.sandbox.inventory.read_text())
    del inventory["network"]  # else both runs would meet at one port
    mine = project.folder / "hosts.yaml"
    mine.write_text(yaml.safe_dump(inventory))

    def launch(visible: str | None, *words: str) -> tuple[int, str, str]:
        env = () if visible is None else ("--env", f"CUDA_VISIBLE_DEVICES={visible}")
        # There is no CUDA on these hosts: its checks fail, and are overruled.
        answer = project.launch("-i", str(mine), "--detach", *env, *LONG, *words, "--", "job.py")
        return answer.returncode, answer.stdout.strip(), " ".join(answer.stderr.split())

    code, first, err = launch("0,1", "--force")
    assert code == 0, err
    code, second, err = launch("2,3", "--force")
    assert code == 0, err
    for run in (first, second):
        project.wait_for(run, "running")
        (node,) = project.status(run)["nodes"]
        assert node["ranks"] == 2

    code, _, err = launch("1,2")
    assert code == 125
    for run, held in ((first, "0, 1"), (second, "2, 3")):
        found = f"expected: free GPUs found: run {run} "
        assert f"another run uses GPU {held} of the node {found}" in err
    code, _, err = launch("3", "--force")
    assert code == 125
    assert f"the machine is busy: run {second} " in err
    code, _, err = launch(None, "--force")
    assert code == 125
    assert "the machine is busy" in err

    # The hosts' nvidia-smi cannot list processes, so whether GPU memory is back stays unknown.
    assert project.run("stop", first, "--grace", "0").returncode in {0, 3}
    assert project.status(first)["state"] == "stopped"
    assert project.status(second)["state"] == "running"
    code, third, err = launch("1", "--force")
    assert code == 0, err
    project.run("stop", second, "--grace", "0")
    assert project.status(second)["state"] == "stopped"
    project.wait_for(third, "running")
