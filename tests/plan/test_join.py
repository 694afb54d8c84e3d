"""The part of a node that joins is what the launch would have given it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.plan.certificate import make_identity
from clusterctl.plan.join import RunningJob
from clusterctl.plan.node_job import node_job
from clusterctl.plan.options import Options
from clusterctl.plan.plan import NodePlan
from clusterctl.wire import plain
from tests.plan.conftest import GPUS, Planner, facts, network, node

JOB = Job(
    command=("train.py", "--name", "a b; echo c"),
    launcher_args=("--nnodes=2:3", "--max-restarts=3"),
    env=(("MODE", "x"),),
    env_from=("HF_TOKEN",),
)
IDENTITY = make_identity("lab-1")
NODES = tuple(node(n) for n in range(3))
INVENTORY = Cluster(name="lab", nodes=NODES, job=Job(command=("other.py",)))


def recorded(plan: Planner, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job that the master keeps, and the plan that the controller has recorded."""
    made = plan(job=JOB, nodes=NODES[:2], **changes)
    job = node_job(made, made.master, IDENTITY, job=JOB, state=None)
    return json.loads(json.dumps(job)), json.loads(json.dumps(plain(made)))


def running(plan: Planner, **changes: Any) -> RunningJob:
    return RunningJob.read(*recorded(plan, **changes), JOB, {})


def joined(run: RunningJob) -> tuple[NodePlan, dict[str, Any]]:
    cluster = run.cluster(INVENTORY, NODES[2])
    part = run.plan_node(
        cluster, facts(2, GPUS[2]), network(), node_rank=2, nnodes=3, first_rank=sum(GPUS[:2])
    )
    job = run.node_job(
        part, state=None, nodes=["n0", "n1", "n2"], link_port=4242, world_size=sum(GPUS)
    )
    return part, dict(job)


def test_it_is_what_the_launch_on_all_nodes_would_have_started(plan: Planner) -> None:
    part, job = joined(running(plan))
    whole = plan(job=JOB, nodes=NODES)
    assert replace(part, procs_origin="") == replace(whole.node("n2"), procs_origin="")
    expected = node_job(whole, whole.node("n2"), IDENTITY, job=JOB, state=None, link_port=4242)
    assert job == {**json.loads(json.dumps(expected)), "joined": True}
    assert job["hostfile"].splitlines()[-1] == "10.0.0.2 slots=8"
    assert "--rdzv-conf=is_host=false" in part.launcher_argv


def test_options_of_the_launch_hold_for_the_node_too(plan: Planner) -> None:
    given = Options(workdir="/other", gpus=2)
    run = RunningJob.read(*recorded(plan, options=given), JOB, plain(given))
    part, _ = joined(run)
    assert (part.workdir, part.procs) == ("/other", 2)
    assert run.cluster(INVENTORY, NODES[2]).subnet == "10.0.0.0/24"


def test_secrets_are_in_the_body_alone(plan: Planner) -> None:
    run = running(plan)
    body = json.loads(run.secrets("t0ken", {"HF_TOKEN": "hf_geheim", "OTHER": "x"}))
    assert body == {"env": {"HF_TOKEN": "hf_geheim"}, "token": "t0ken"}
    assert "hf_geheim" not in json.dumps(joined(run)[1])


@pytest.mark.parametrize("wrong", [{"link": 3}, {"hostfile": "x; rm slots=1\n"}])
def test_a_damaged_job_is_refused(plan: Planner, wrong: dict[str, Any]) -> None:
    job, known = recorded(plan)
    with pytest.raises(ValueError, match=r"job\.link|addresses"):
        RunningJob.read({**job, **wrong}, known, JOB, {})


def test_what_the_master_says_besides_is_not_taken_over(plan: Planner) -> None:
    job, known = recorded(plan)
    evil = {
        "argv": ["evil"], "launcher_argv": ["evil"], "env": [["LD_PRELOAD", "evil", "asked"]],
        "env_init": "evil", "stop": {"file": "/etc/nologin"}, "master": {"address": "10.0.0.66"},
        "run": "lab-2", "resumed": {"run": "x", "checkpoint": "/evil"}, "wrap": ["evil"],
        "workdir": "/root", "elastic": {"job": {"check": ["evil"], "env_from": ["AWS_KEY"]}},
    }  # fmt: skip
    run = RunningJob.read({**job, **evil, "unknown": "evil"}, known, JOB, {})
    assert joined(run) == joined(running(plan))
