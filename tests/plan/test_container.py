"""The command around a job in a container: what is added, and what the person's words change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Job
from clusterctl.plan.plan import NodePlan
from tests.plan.conftest import Planner, facts

IMAGE = "trainer:1"


def planned(plan: Planner, *words: str, gpus: int = 4, **job: object) -> NodePlan:
    wrapped = Job(command=("train.py",), launcher="direct", wrap=words)
    known = {f"n{n}": facts(n, gpus) for n in range(3)}
    return plan(job=replace(wrapped, **job), known=known).node("n1")  # type: ignore[arg-type]


def test_a_container_is_around_the_rank_and_sees_what_the_job_needs(plan: Planner) -> None:
    node = planned(
        plan, "docker", "run", "--shm-size=8g", IMAGE,
        needs=("/models/base", "/data/*.parquet", "~/tokenizer", "inside"), env_from=("HF_TOKEN",),
    )  # fmt: skip
    assert node.wrap == ()
    assert node.container[:2] == ("docker", "run")
    assert node.container[-2:] == ("--shm-size=8g", IMAGE)
    assert node.command_line[-2:] == node.argv
    added = node.container[2:-2]
    for option in ("--rm", "--pull=never", "--network=host", "--ipc=host", "--pid=host"):
        assert option in added
    assert "--gpus=all" in added
    assert added[added.index("--user={uid}:{gid}") + 1] == "--env=HOME={workdir}"
    assert f"--label=clusterctl.node={node.node}" in added
    mounted = [word.rpartition("target=")[2] for word in added if word.startswith("--mount=")]
    assert mounted == ["{workdir}", "/data", "/models/base", node.state, "{home}/tokenizer"]
    names = {word.removeprefix("--env=") for word in added if word.startswith("--env=")}
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "HF_TOKEN", "NCCL_SOCKET_IFNAME",
            "CLUSTERCTL_RUN_ID", "CLUSTERCTL_LOCK"} <= names  # fmt: skip


def test_a_launcher_runs_inside_with_its_ranks(plan: Planner) -> None:
    node = planned(plan, "docker", "run", IMAGE, launcher="torchrun")
    at = len(node.container)
    assert node.command_line[at : at + 3] == ("/venv/bin/python", "-m", "torch.distributed.run")


def test_what_the_person_wrote_is_not_added_again(plan: Planner) -> None:
    options = ("--rm", "--net", "none", "--gpus", '"device=0"', "--ipc=private", "--pull", "always",
               "-v", "/models:/models", "-w", "/code")  # fmt: skip
    node = planned(plan, "docker", "run", *options, IMAGE, needs=("/models",))
    added = node.container[2 : -1 - len(options)]
    assert not {"--rm", "--network=host", "--gpus=all", "--ipc=host", "--pull=never"} & set(added)
    assert not [word for word in added if "/models" in word or word.startswith("--workdir")]
    assert "--pid=host" in added


def test_each_engine_has_its_own_way_to_the_gpus(plan: Planner) -> None:
    assert "--device=nvidia.com/gpu=all" in planned(plan, "podman", "run", IMAGE).container
    inside = planned(plan, "apptainer", "exec", "trainer.sif").container
    assert inside[:2] == ("apptainer", "exec")
    assert inside[-2:] == ("--nv", "trainer.sif")
    assert inside[2:6] == ("--pwd", "{workdir}", "--bind", "{workdir}")
    without = planned(plan, "docker", "run", IMAGE, gpus=0).container
    assert "--gpus=all" not in without


def test_another_program_is_in_front_of_each_rank(plan: Planner) -> None:
    node = planned(plan, "nsys", "profile", launcher="torchrun")
    assert node.container == ()
    assert node.command_line[-4:] == ("nsys", "profile", *node.argv)


def test_rays_workers_would_be_outside(plan: Planner) -> None:
    with pytest.raises(UsageError, match=r"job\.wrap: the launcher ray cannot run in docker"):
        planned(plan, "docker", "run", IMAGE, launcher="ray")
