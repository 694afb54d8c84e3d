"""Runs on a real Slurm cluster: inside of an allocation, and as batch jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.sandbox import sandbox
from clusterctl.sandbox.backend import SandboxSpec
from tests import slurm_cluster
from tests.cli.runs import ECHO, JOB, ROOT, checkpoint
from tests.conftest import need_netns
from tests.slurm_cluster import NEEDS_SLURM, SlurmCluster
from tests.waiting import BUSY, wait_until

pytestmark = list(NEEDS_SLURM)

Answer = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """A login node, and three nodes for jobs."""
    need_netns()
    box = sandbox.up(f"slurm{os.getpid()}", SandboxSpec(nodes=4), backend="netns")
    with slurm_cluster.started(box) as cluster:
        yield cluster


@dataclass(frozen=True)
class Project:
    """A folder on the shared filesystem of a Slurm cluster, and clusterctl in it."""

    slurm: SlurmCluster
    name: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.slurm.folder / self.name

    def write(self, **job: object) -> None:
        document = {
            "cluster": "lab",
            "defaults": {"gpus": 0, "python": sys.executable},
            "workdir": self.slurm.shared(self.name, "code"),
            "network": {"master_port": 29500},
            "job": {"launcher": "slurm", "slurm": {"nodes": 3}, **job},
        }
        (self.folder / "hosts.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def argv(self, *words: str, within: tuple[str, ...] = (), **env: str) -> list[str]:
        variables = {"CLUSTERCTL_STATE": self.slurm.shared(self.name, "state")}
        variables["PYTHONPATH"] = str(ROOT)
        command = (*within, sys.executable, "-m", "clusterctl", *words)
        return self.slurm.argv(command, variables | env, cwd=self.slurm.shared(self.name))

    def run(self, *words: str, within: tuple[str, ...] = (), **env: str) -> Answer:
        return subprocess.run(
            self.argv(*words, within=within, **env),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=BUSY,
        )  # fmt: skip

    def allocated(self, *words: str, **env: str) -> Answer:
        return self.run(*words, within=("salloc", "--quiet", "--nodes=3"), **env)

    def submit(self, *words: str, **env: str) -> str:
        """Submit a launch; return the run."""
        done = self.run("launch", "--detach", *words, within=(), **env)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def status(self, *run: str) -> dict[str, Any]:
        done = self.run("status", "--json", *run)
        assert done.returncode == 0, done
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def wait_for(self, run: str, state: str) -> dict[str, Any]:
        if state == "running":
            wait_until(lambda: not unlocked(self.slurm))
        wait_until(lambda: self.run("status", "--json", run).stdout.count(f'"{state}"'))
        return self.status(run)


@pytest.fixture
def project(slurm: SlurmCluster, request: pytest.FixtureRequest) -> Iterator[Project]:
    made = Project(slurm, f"p{abs(hash(request.node.name)) % 10**8}")
    made.folder.mkdir()
    (made.folder / "job.py").write_text(JOB)
    (made.folder / "echo.py").write_text(ECHO)
    made.write()
    yield made
    for job in slurm.jobs():
        slurm.run("scancel", job)
    wait_until(lambda: not slurm.jobs())
    # Where Slurm killed a supervisor, its guard ends the run, and holds the node until then.
    wait_until(lambda: unlocked(slurm))


def unlocked(slurm: SlurmCluster) -> bool:
    """Tell whether no run holds any node."""
    held = ["grep", "-q", "@clusterctl-run", "/proc/net/unix"]
    return all(slurm.sandbox.on(node, held).returncode for node in slurm.compute)


def nothing_left(slurm: SlurmCluster) -> bool:
    """Tell whether no rank is left on any node."""
    return all(
        slurm.sandbox.on(node, ["pgrep", "-f", "job.py"]).returncode for node in slurm.compute
    )


def test_in_an_allocation_the_nodes_are_slurms_and_nothing_is_reached_by_ssh(
    project: Project,
) -> None:
    for host in project.slurm.compute:
        project.slurm.sandbox.fault(host, "sshd-killed")
    try:
        done = project.allocated("launch", "--", "job.py")
    finally:
        project.slurm.sandbox.heal()
    assert done.returncode == 0, done
    # On a busy machine a rank's line may come too late to be folded with the others'.
    met = ",".join(re.findall(r"^\[[^]]*:([\d,-]+)\] +all met$", done.stdout, re.MULTILINE))
    bounds = [part.split("-") for part in met.split(",")]
    ranks = [rank for each in bounds for rank in range(int(each[0]), int(each[-1]) + 1)]
    assert sorted(ranks) == [0, 1, 2], done.stdout
    first = project.slurm.compute[0]
    assert f"slurm, 3 ranks: {first} (rank 0)" in done.stderr
    assert "finished (ended by job)" in done.stderr


def test_other_launchers_work_over_srun_too(project: Project) -> None:
    document = yaml.safe_load((project.folder / "hosts.yaml").read_text())
    document |= {"ssh": {"via": "srun"}, "job": {"launcher": "direct"}}
    (project.folder / "hosts.yaml").write_text(yaml.safe_dump(document))
    done = project.allocated("launch", "--nodes", "2", "--", "job.py")
    assert done.returncode == 0, done
    assert "direct, 2 ranks" in done.stderr


def test_ranks_have_the_variables_of_the_job_and_none_of_a_step(project: Project) -> None:
    (project.folder / "echo.py").write_text(
        "import json, os\n"
        "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('SLURM_')}))\n"
    )
    done = project.allocated("launch", "--nodes", "1", "--", "echo.py")
    assert done.returncode == 0, done
    variables = json.loads(done.stdout.split(" ", 1)[1])
    assert variables["SLURM_JOB_NODELIST"]
    assert not {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_ID"} & variables.keys()


def test_a_killed_rank_of_a_batch_job_ends_it_with_its_cause(project: Project) -> None:
    done = project.run("launch", "--", "job.py", BAD="1")
    assert done.returncode == 128 + 9, done
    assert "submitted as Slurm job" in done.stderr
    assert "first cause: node3, rank 1: " in done.stderr
    view = project.status()
    assert (view["state"], view["first_cause"]["rank"]) == ("failed", 1)
    assert "first cause: node3, rank 1" in project.run("status").stdout
    assert "rank 1 step 2" in project.run("logs", "--tail", "9").stdout
    wait_until(lambda: not project.slurm.jobs())
    assert nothing_left(project.slurm)


def test_a_live_batch_job_is_asked_followed_and_stopped(project: Project) -> None:
    run = project.submit("--name", "long", "--", "job.py", STEPS="2000")
    view = project.wait_for("long", "running")
    assert [node["node"] for node in view["nodes"]] == list(project.slurm.compute)
    wait_until(lambda: "step 3" in project.run("logs", "long", "--rank", "2").stdout)
    listed = json.loads(project.run("runs", "--json").stdout)["runs"]
    assert [(one["run"], one["state"]) for one in listed] == [(run, "running")]
    done = project.run("stop")
    assert done.returncode == 0, done
    assert f"{run}: stopped and verified on node2, node3, node4" in done.stdout
    assert project.slurm.jobs() == []
    assert nothing_left(project.slurm)
    assert project.status(run)["state"] == "stopped"


def test_a_queued_job_shows_why_it_waits_and_is_cancelled(project: Project) -> None:
    project.slurm.run("sbatch", "--nodes=3", "--exclusive", "--wrap", "sleep 600")
    run = project.submit("--name", "waits", "--", "job.py")
    view = project.wait_for(run, "Resources")
    assert (view["state"], view["slurm"]["state"]) == ("queued", "PENDING")
    shown = project.run("status").stdout
    assert f"{run} (waits)  queued" in shown
    assert "PENDING (Resources)" in shown
    top = json.loads(project.run("top", "--json").stdout)
    assert (top["run"], top["state"], top["slurm"]["reason"]) == (run, "queued", "Resources")
    assert f"\n{run[-4:]}  queued" in project.run("runs").stdout
    assert project.run("logs").stdout == ""
    done = project.run("stop", "waits")
    assert done.returncode == 0, done
    assert "CANCELLED" in done.stderr
    assert project.status(run)["state"] == "stopped"
    assert project.run("stop", "waits").returncode == 0, "again"
    assert not (project.slurm.folder / project.name / "code").exists(), "nothing ran"


def test_a_queued_job_runs_what_was_submitted_whatever_the_inventory_has_by_then(
    project: Project,
) -> None:
    project.write(command=["echo.py", "first"], slurm={"nodes": 1, "hold": ""})
    run = project.submit()
    project.write(command=["echo.py", "second"])
    (job,) = project.slurm.jobs()
    project.slurm.run("scontrol", "release", job)
    wait_until(lambda: not project.slurm.jobs())
    assert '["first"]' in project.run("logs", run).stdout
    assert project.status(run)["state"] == "finished"


def test_a_job_that_slurm_ends_is_failed_with_slurms_word(project: Project) -> None:
    run = project.submit("--", "job.py", STEPS="2000")
    project.wait_for(run, "running")
    (job,) = project.slurm.jobs()
    project.slurm.run("scancel", job)
    wait_until(lambda: not project.slurm.jobs())
    view = project.status(run)
    assert (view["state"], view["ended_by"]) == ("stopped", "slurm")
    kept = json.loads((project.folder / "state/lab" / run / "slurm.json").read_text())
    assert kept["state"] == "CANCELLED"
    printed = (project.folder / "state/lab" / run / "err").read_text()
    assert f"Slurm ends job {job}: CANCELLED" in printed
    assert "keeps running" not in printed
    wait_until(lambda: nothing_left(project.slurm))


def test_a_batch_job_is_resumed_from_a_checkpoint_on_the_nodes_that_it_gets(
    project: Project,
) -> None:
    project.write(
        command=["echo.py", "base"],
        checkpoints="out",
        resume_args=["--from", "{checkpoint}"],
        slurm={"nodes": 2},
    )
    done = project.run("launch")
    assert done.returncode == 0, done
    run = project.status()["run"]
    checkpoint(project.folder / "code" / "out", 10, run)
    done = project.run("resume", "--checkpoint", "latest", "--nodes", "3")
    assert done.returncode == 0, done
    newest = project.slurm.shared(project.name, "code", "out", "step-000010")
    assert f'["base", "--from", "{newest}"]' in done.stdout
    assert "3 ranks: node2" in done.stderr


def test_a_resume_takes_the_nodes_that_slurm_gives_it_and_needs_its_inventory(
    project: Project,
) -> None:
    job = {"command": ["echo.py"], "checkpoints": "out", "resume_args": ["{checkpoint}"]}
    first, second, _ = project.slurm.compute
    project.write(**job, slurm={"nodes": 1, "nodelist": first})
    assert project.run("launch").returncode == 0
    run = project.status()["run"]
    checkpoint(project.folder / "code" / "out", 10, run)
    project.write(**job, slurm={"nodes": 1, "nodelist": second})
    done = project.run("resume", "--checkpoint", "latest")
    assert done.returncode == 0, done
    assert f"1 rank: {second} (rank 0)" in done.stderr
    elsewhere = project.run("resume", run, "--checkpoint", "latest", within=("env", "-C", "/"))
    assert elsewhere.returncode == 2, elsewhere
    assert f"{run} ran on nodes that Slurm chose: expected its inventory" in elsewhere.stderr
    assert f"hint: cd {project.slurm.shared(project.name)}, then" in elsewhere.stderr


def test_a_check_that_fails_inside_of_the_job_is_the_jobs_end(project: Project) -> None:
    project.write(needs=["/no/such/model"])
    done = project.run("launch", "--", "job.py")
    assert done.returncode == 125, done
    assert "/no/such/model" in done.stderr
    view = project.status()
    assert view["state"] == "failed"
    assert "error: not launched: " in project.run("status").stdout


def test_what_slurm_refuses_leaves_nothing_behind(project: Project) -> None:
    project.write(slurm={"nodes": 2, "partition": "nope"})
    done = project.run("launch", "--", "job.py")
    assert done.returncode == 125, done
    assert "invalid partition" in done.stderr.lower()
    assert "hint: " in done.stderr
    assert list(project.folder.glob("state/lab/*")) == []


@pytest.mark.parametrize(
    ("job", "words", "message"),
    [
        ({"slurm": {}}, (), "job.slurm.nodes: expected the number of nodes, found none"),
        ({}, ("--nodes", "node2"), "--nodes: expected no names of nodes"),
        ({"env_from": ["NO_SUCH_SECRET"]}, (), "NO_SUCH_SECRET"),
        ({}, ("--", "no_such.py"), "command: expected the script no_such.py"),
        ({}, ("--", "bash", "steps.sh"), "steps.sh:1: srun starts ranks on other machines"),
    ],
)
def test_what_could_not_be_submitted_is_refused_here(
    project: Project, job: dict[str, object], words: tuple[str, ...], message: str
) -> None:
    project.write(**job)
    (project.folder / "steps.sh").write_text("srun python train.py\n")
    done = project.run("launch", *words, *(() if "--" in words else ("--", "job.py")))
    assert (done.returncode, project.slurm.jobs()) == (2, [])
    assert message in done.stderr
    assert list(project.folder.glob("state/lab/*")) == []


def test_a_resume_that_cannot_be_is_refused_before_the_queue(project: Project) -> None:
    assert project.run("launch", "--", "echo.py").returncode == 0
    done = project.run("resume", "--checkpoint", "latest")
    assert (done.returncode, project.slurm.jobs()) == (2, [])
    assert "job.resume_args: expected {checkpoint}" in done.stderr
    assert "--run-id" not in done.stderr
    assert len(list(project.folder.glob("state/lab/*"))) == 1


def test_outside_of_an_allocation_a_check_tells_how_to_get_one(project: Project) -> None:
    done = project.run("check")
    assert done.returncode == 2
    assert "nodes: expected those of a Slurm allocation" in done.stderr
    assert "hint: salloc" in done.stderr


def test_a_node_that_slurm_gave_to_two_jobs_has_a_hint_that_slurm_takes(project: Project) -> None:
    project.write(slurm={"nodes": 1, "nodelist": project.slurm.compute[0]})
    project.wait_for(project.submit("--", "job.py", STEPS="2000"), "running")
    done = project.run("launch", "--", "job.py")
    assert done.returncode == 125, done
    assert "another run uses the node" in done.stderr
    assert 'exclusive: ""' in done.stderr
    assert "--wait" not in done.stderr


def test_a_run_that_nobody_knows_is_called_so(project: Project) -> None:
    for verb in ("status", "logs", "stop"):
        done = project.run(verb, "nosuch")
        assert done.returncode in {1, 2}, done
        assert "nosuch" in done.stderr
        assert "salloc" not in done.stderr


def test_of_several_jobs_none_is_chosen_and_the_only_live_one_is(project: Project) -> None:
    project.write(slurm={"nodes": 1, "hold": ""})
    first, second = project.submit("--name", "a", "--", "job.py"), project.submit("--", "job.py")
    for verb in ("stop", "logs"):
        done = project.run(verb)
        assert done.returncode == 2, done
        assert f"several runs are live: {second}, {first} (a)" in done.stderr
        assert f"hint: clusterctl {verb} {first}\n" in done.stderr
    shown = project.run("status")
    assert (shown.returncode, shown.stdout.count(" queued\n")) == (0, 2), shown
    measured = project.run("status", "--prometheus").stdout
    assert (first in measured, second in measured) == (True, True), measured
    assert project.run("stop", second).returncode == 0
    assert project.status()["run"] == first, "though the other is newer"
    assert project.run("stop").returncode == 0
    assert project.slurm.jobs() == []


def test_other_code_than_that_of_a_live_run_in_its_workdir_is_warned_of(project: Project) -> None:
    project.write(slurm={"nodes": 1, "nodelist": project.slurm.compute[0]})
    run = project.submit("--", "job.py", STEPS="2000")
    project.wait_for(run, "running")
    project.write(slurm={"nodes": 1, "hold": ""})
    (project.folder / "echo.py").write_text("print('changed')")
    done = project.run("launch", "--detach", "--", "echo.py")
    assert f"warning: {run} is live: this job will change files in its workdir" in done.stderr
    folder = project.slurm.shared(project.name, "code-2")
    assert f"clusterctl launch --detach --workdir {folder} -- echo.py\n" in done.stderr
    done = project.run("launch", "--detach", "--workdir", "/tmp/apart", "--", "echo.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_left_behind_by_a_batch_script_is_warned_of(project: Project) -> None:
    done = project.allocated("launch", "--detach", "--", "echo.py", ENVIRONMENT="BATCH")
    assert done.returncode == 0, done
    assert "warning: Slurm kills the run as soon as this batch script ends" in done.stderr


def test_an_allocation_that_ended_is_named(project: Project) -> None:
    done = project.run("check", SLURM_JOB_ID="4711", SLURM_JOB_NODELIST="node[2-3]")
    assert done.returncode == 1, done
    assert "Unable to confirm allocation for job 4711" in done.stdout
    assert "squeue --job 4711" in done.stdout
