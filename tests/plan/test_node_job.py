"""What a node is sent: everything but the secrets in one part, the secrets in the other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cryptography import x509

from clusterctl.inventory.cluster import Job, Restart, Stop
from clusterctl.model.node_run import Resumed
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.run.files.node_job import AddedByNode, MasterDecision, NodeJob, next_job
from clusterctl.plan.certificate import make_identity
from clusterctl.plan.node_job import node_job, node_secrets
from clusterctl.wire import plain
from tests.plan.conftest import Planner

IDENTITY = make_identity("lab-1")


def test_a_worker_is_told_where_the_master_is(plan: Planner) -> None:
    made = plan()
    job = node_job(made, made.node("n1"), IDENTITY, job=Job(), state=None, link_port=4242)
    assert job["master"] == {"node": "n0", "address": "10.0.0.0", "port": 29500}
    assert job["link"] == {
        "address": "10.0.0.0",
        "port": 4242,
        "certificate": IDENTITY.certificate,
        "lost_after": 15.0,
    }
    assert job["workers"] == ["n1", "n2"]
    assert (job["stop"]["signal"], job["stop"]["grace"]) == ("TERM", 60.0)
    assert json.loads(json.dumps(job)) == job
    assert job.keys() == NodeJob.__annotations__.keys() - AddedByNode.__annotations__.keys()


def test_a_node_gets_the_settings_of_the_job_that_are_for_nodes(plan: Planner) -> None:
    made, job = plan(), Job(env_init="source x", stop=Stop(grace=5.0), start_timeout=7.0)
    sent = node_job(made, made.master, IDENTITY, job=job, state=None)
    assert (sent["env_init"], sent["start_timeout"]) == ("source x", 7.0)
    assert sent["stop"] == plain(Stop(grace=5.0))


def test_secrets_are_in_the_body_alone_and_the_key_is_the_masters(plan: Planner) -> None:
    made = plan(job=Job(command=("x.py",), env_from=("HF_TOKEN", "NOT_SET")))
    mine = {"HF_TOKEN": "hf_geheim", "OTHER": "x"}
    bodies = [json.loads(node_secrets(made, each, IDENTITY, mine)) for each in made.nodes]
    assert [body["env"] for body in bodies] == [{"HF_TOKEN": "hf_geheim"}] * 3
    assert [body.get("key") for body in bodies] == [IDENTITY.key, None, None]
    tokens = [body["token"] for body in bodies]
    assert tokens[0] == IDENTITY.token, "the master's"
    workers = [node_token(IDENTITY.token, each.node) for each in made.nodes[1:]]
    assert tokens[1:] == workers
    assert len(set(tokens)) == len(made.nodes)
    jobs = [node_job(made, each, IDENTITY, job=Job(), state=None) for each in made.nodes]
    sent = json.dumps(jobs)
    for secret in ("hf_geheim", IDENTITY.token, IDENTITY.key):
        assert json.dumps(secret)[1:-1] not in sent


def test_every_node_of_a_ray_run_gets_the_same_token_of_ray_and_of_nothing_else(
    plan: Planner,
) -> None:
    made = replace(plan(job=Job(command=("x.py",))), launcher="ray")
    bodies = [json.loads(node_secrets(made, each, IDENTITY, {})) for each in made.nodes]
    (ray,) = {body["ray_token"] for body in bodies}
    assert ray not in {body["token"] for body in bodies}
    assert ray != node_token(IDENTITY.token, "ray")


def test_an_identity_is_new_each_time_and_hides_its_secrets() -> None:
    other = make_identity("lab-1")
    assert other.token != IDENTITY.token
    assert other.certificate != IDENTITY.certificate
    assert IDENTITY.key not in repr(IDENTITY)
    assert IDENTITY.token not in repr(IDENTITY)
    certificate = x509.load_pem_x509_certificate(IDENTITY.certificate.encode())
    assert certificate.not_valid_before_utc.year == 1970
    assert certificate.not_valid_after_utc.year == 9999


def test_a_node_gets_the_command_of_a_further_attempt(plan: Planner) -> None:
    job = Job(
        command=("train.py", "--out", "{run}"),
        resume_args=("--from={checkpoint}", "--step={checkpoint_step}", "--run", "{run}"),
        restart=Restart(max=2),
    )
    made = plan(job=job)
    sent = node_job(made, made.master, IDENTITY, job=job, state=None)
    assert sent["argv"] == ["/venv/bin/python", "train.py", "--out", "lab-1"]
    restart = sent["restart"]
    assert restart is not None
    assert restart["max"] == 2
    places = ["--from={checkpoint}", "--step={checkpoint_step}"]
    assert restart["resumed_argv"] == [*sent["argv"], *places, "--run", "lab-1"]
    again: MasterDecision = {
        "attempt": 2, "checkpoint": "/c/4", "step": 4, "wait_s": 1.0, "why": "", "go": True,
        "without": [], "joined": [],
    }  # fmt: skip
    second = next_job(sent, again, began=7.0, link_port=0)
    assert second["argv"] == [*sent["argv"], "--from=/c/4", "--step=4", "--run", "lab-1"]
    assert (second["attempt"], second["began"]) == (2, 7.0)
    third = next_job(second, {**again, "checkpoint": None}, began=7.0, link_port=0)
    assert third["argv"] == sent["argv"], "without a checkpoint the command of the launch"


@pytest.mark.parametrize(("args", "added"), [((), None), (("--init_from=resume",),) * 2])
def test_a_program_that_finds_its_checkpoint_itself_gets_its_flag(
    args: tuple[str, ...], added: tuple[str, ...] | None, plan: Planner
) -> None:
    job = Job(command=("train.py",), resume_args=args, restart=Restart(max=2))
    made = plan(job=job)
    sent = node_job(made, made.master, IDENTITY, job=job, state=None)
    assert sent["restart"] is not None
    assert sent["restart"]["resumed_argv"] == ([] if added is None else [*sent["argv"], *added])


def test_a_resumed_run_takes_its_own_newer_checkpoint(plan: Planner) -> None:
    job = Job(command=("train.py", "--from", "/c/4"), restart=Restart(max=2))
    made = plan(job=job)
    resumed = Resumed(
        run="lab-0", checkpoint="/c/4", command=("train.py", "--from", "{checkpoint}")
    )
    sent = node_job(made, made.master, IDENTITY, job=job, state=None, resumed=resumed)
    assert sent["restart"] is not None
    python = "/venv/bin/python"
    assert sent["restart"]["resumed_argv"] == [python, "train.py", "--from", "{checkpoint}"]


def test_a_job_that_names_no_place_for_a_checkpoint_is_started_as_it_was(plan: Planner) -> None:
    job = Job(command=("train.py",), restart=Restart(max=2))
    made = plan(job=job)
    sent = node_job(made, made.master, IDENTITY, job=job, state=None)
    assert sent["restart"] is not None
    assert sent["restart"]["resumed_argv"] == []
    without = node_job(made, made.master, IDENTITY, job=Job(command=("train.py",)), state=None)
    assert without["restart"] is None
