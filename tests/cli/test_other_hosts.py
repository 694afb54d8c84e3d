"""Whole runs where nodes are reached otherwise: as an ordinary user, over IPv6, by jump hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox, Wanted

pytestmark = [pytest.mark.netns, pytest.mark.timeout(900)]

JOB = """
import json, os, pathlib, runpy, sys

print("uid", os.getuid(), "at", os.environ["MASTER_ADDR"], "with", *sys.argv[1:], flush=True)
if os.environ["RANK"] == "0":
    out = pathlib.Path("out")
    out.mkdir(exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    checkpoint = len(header).to_bytes(8, "little") + header + bytes(4)
    (out / "step-10.safetensors").write_bytes(checkpoint)
runpy.run_path("job.py")
"""
"""Rank 0 saves before other nodes may have begun; then all meet and step as other jobs do."""

GLOO = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
numbers = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(numbers)
print("sum", numbers.unique().tolist(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Hosts that are reached in a way of their own."""

    sandbox: Wanted
    ssh: dict[str, str] = field(default_factory=dict)
    by_address: bool = False
    uid: int = 0
    master: str = "10.77.0.11"


KINDS = {
    "an ordinary user, IPv6 and two jump hosts": Kind(
        sandbox={"nodes": 2, "users": ("ada",), "ip": "6", "jumps": 2},
        by_address=True,
        uid=2000,
        master="fd77::11",
    ),
    "an ordinary user": Kind(sandbox={"nodes": 2, "users": ("ada",)}, uid=2000),
    "IPv6": Kind(sandbox={"nodes": 2, "ip": "6"}, by_address=True, master="fd77::11"),
    "two jump hosts": Kind(sandbox={"nodes": 2, "jumps": 2}),
    "two jump hosts, via openssh": Kind(sandbox={"nodes": 2, "jumps": 2}, ssh={"via": "openssh"}),
}
ALL_AT_ONCE, *ALONE = KINDS
"""All kinds in one story are quick; soaks tell them apart."""


def furnish(project: Project, kind: Kind) -> None:
    """Write the inventory of hosts of a kind, and the job."""
    document: dict[str, Any] = yaml.safe_load(project.inventory.read_text())
    document["ssh"] |= kind.ssh
    if kind.by_address:
        document["nodes"] = [{"host": host.address} for host in project.sandbox.hosts]
    document["job"] = {
        "launcher": "direct",
        "command": ["train.py"],
        "checkpoints": "out",
        "resume_args": ["--from", "{checkpoint}"],
    }
    project.inventory.write_text(yaml.safe_dump(document))
    (project.folder / "train.py").write_text(JOB)


def left(box: Sandbox) -> str:
    """Return the processes of jobs that run on the hosts."""
    said = (box.on(host.name, ["pgrep", "-af", "train.py"]).stdout for host in box.hosts)
    return "".join(said)


@pytest.mark.parametrize(
    "name", [ALL_AT_ONCE, *(pytest.param(name, marks=pytest.mark.soak) for name in ALONE)]
)
def test_check_launch_logs_stop_and_resume(
    make_sandbox: MakeSandbox, make_project: MakeProject, name: str
) -> None:
    kind = KINDS[name]
    box = make_sandbox(**kind.sandbox)
    project = make_project(box)
    furnish(project, kind)

    launched = project.run("launch", "--detach", "--env", "STEPS=6000")
    assert launched.returncode == 0, launched.stdout + launched.stderr
    run = launched.stdout.strip()
    project.wait_for(run, "running")
    assert {node["ranks"] for node in project.status(run)["nodes"]} == {1}

    collected = project.folder.parent / "collected"
    answer = project.run("logs", run, "--collect", str(collected))
    assert answer.returncode == 0, answer.stderr
    logs = {path.parent.parent.name: path.read_text() for path in collected.rglob("ranks/*.log")}
    assert len(logs) == 2, list(collected.rglob("*"))
    for text in logs.values():
        assert f"uid {kind.uid} at {kind.master} with\n" in text

    stopped = project.run("stop", run, "--grace", "0")
    assert stopped.returncode == 0, stopped.stderr
    assert project.status(run)["state"] == "stopped"
    assert left(box) == ""

    resumed = project.run("resume", run, "--checkpoint", "latest", "--env", "STEPS=2", "--no-check")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    saved = f"{project.workdir}/out/step-10.safetensors"
    assert f"uid {kind.uid} at {kind.master} with --from {saved}" in resumed.stdout
    assert project.status()["state"] == "finished"


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.parametrize("ip", ["6", "both"])
def test_torchrun_and_gloo_over_ipv6(
    make_sandbox: MakeSandbox, make_project: MakeProject, ip: Any
) -> None:
    project = make_project(make_sandbox(nodes=2, ip=ip))
    document = yaml.safe_load(project.inventory.read_text())
    document["network"]["subnet"] = "fd77::/64"
    project.inventory.write_text(yaml.safe_dump(document))
    (project.folder / "gloo.py").write_text(GLOO)
    answer = project.run("launch", "--", "gloo.py", seconds=200)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "sum [3.0] of 2" in answer.stdout
    assert "master fd77::11" in answer.stdout + answer.stderr
