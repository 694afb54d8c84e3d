"""Whole runs on real sshd hosts: launched, followed, failed, abandoned, refused."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest
import yaml

from clusterctl.sandbox.gpus import Gpus
from tests.cli.conftest import MakeProject
from tests.cli.hints import commands
from tests.cli.runs import Project, lines_of, signal_all
from tests.conftest import MakeSandbox
from tests.waiting import BUSY

pytestmark = pytest.mark.netns

LONG = ("--env", "STEPS=6000")


def last_event(answer: subprocess.CompletedProcess[str]) -> dict[str, object]:
    event: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
    return event


def test_fewer_ranks_than_gpus_see_all_gpus_that_are_asked_for(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=1, gpus=Gpus(model="H100", count=8)))

    def planned(*words: str) -> list[str]:
        dry = ("--dry-run", "--json", "--no-check", "--procs-per-node", "1")
        answer = project.launch(*dry, *words, "--", "job.py")
        event: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
        (node,) = event["nodes"]
        assert node["procs"] == 1, answer.stderr
        return [one["value"] for one in node["env"] if one["name"] == "CUDA_VISIBLE_DEVICES"]

    assert planned() == []
    assert planned("--gpus", "4") == ["0,1,2,3"]


def test_a_run_from_start_to_end(project: Project) -> None:
    answer = project.launch("--env", "STEPS=20", "--", "job.py")
    assert answer.returncode == 0, answer.stderr
    assert "] all met" in answer.stdout
    for rank, node in enumerate(("node1", "node2", "node3")):
        assert f"[{node}:{rank}] rank {rank} step 19" in answer.stdout
    assert "3 of 3 ranks have joined" in answer.stderr
    document = project.status()
    assert (document["state"], document["ended_by"]) == ("finished", "job")
    assert [rank["exit_code"] for rank in document["ranks"]] == [0, 0, 0]
    listed = json.loads(project.run("runs", "--json").stdout)["runs"]
    assert listed[0]["run"] == document["run"]
    refused = project.run("logs", "--rank", "0,9")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--rank: expected 0-2, found 9" in refused.stderr
    assert lines_of(2, project.run("logs", "--raw", "--rank", "2").stdout)


@pytest.mark.soak  # test_open_ports.py and test_containers.py have torchrun
@pytest.mark.torch
def test_a_run_under_torchrun(project: Project) -> None:
    (project.folder / "reduce.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "t = torch.ones(1)\n"
        "dist.all_reduce(t)\n"
        "print('sum', t.item(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    answer = project.run("launch", "--", "reduce.py", seconds=150)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("sum 3.0") in {1, 2, 3}


NESTED = """
import os
names = ("RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "GROUP_RANK")
# In one write: torchrun starts ranks unbuffered, and those of a node share a log.
os.write(1, " ".join(["rank", *map(os.environ.get, names)]).encode() + b"\\n")
"""
"""Its agents meet. That ranks meet where these variables say, test_open_ports.py shows."""
SCRIPTS = {
    "flags": 'torchrun --nnodes "$NNODES" --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"'
    ' --master-port "$MASTER_PORT" --nproc-per-node 2 train.py',
    "environment": "torchrun --nproc-per-node 2 train.py",
}


@pytest.mark.torch
@pytest.mark.parametrize("script", ["environment", pytest.param("flags", marks=pytest.mark.soak)])
def test_a_script_that_starts_torchrun_runs_once_a_node(project: Project, script: str) -> None:
    (project.folder / "train.py").write_text(NESTED)
    (project.folder / "train.sh").write_text(SCRIPTS[script])
    nodes = ("--nodes", "2", "--start-timeout", "300")
    answer = project.run(
        *("launch", "--launcher", "direct", "--procs-per-node", "1", *nodes),
        *("--", "bash", "train.sh"),
        seconds=150,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = project.run("logs", "--raw").stdout
    found = sorted(line for line in told.splitlines() if line.startswith("rank"))
    assert found == [f"rank {rank} 4 {rank // 2} 2 {rank // 2}" for rank in range(4)]


def test_a_launcher_as_the_command_is_refused_before_any_node_is_asked(project: Project) -> None:
    answer = project.run("launch", "--", "torchrun", "--nproc_per_node=2", "job.py", "--lr", "1")
    assert answer.returncode == 2
    assert "found the launcher torchrun" in answer.stderr
    assert "hint: clusterctl launch --procs-per-node 2 -- job.py --lr 1" in answer.stderr


ALONE = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:29500 job.py"


def test_a_script_that_would_train_each_node_alone_is_refused_and_its_hint_works(
    project: Project,
) -> None:
    once = ("--dry-run", "--launcher", "direct", "--procs-per-node", "1", "--nodes", "2")
    (project.folder / "run.sh").write_text(f"set -e\n{ALONE}\n")
    refused = project.run("launch", *once, "--", "bash", "run.sh")
    assert refused.returncode == 2, refused.stderr
    assert "run.sh:2: the ranks of torchrun meet at localhost:29500" in refused.stderr
    assert 'hint: write "$MASTER_ADDR:$MASTER_PORT" instead of localhost:29500' in refused.stderr
    forced = project.run("launch", "--force", *once, "--", "bash", "run.sh")
    assert forced.returncode == 0, forced.stderr
    assert "warning: run.sh:2: the ranks of torchrun meet at localhost" in forced.stderr
    (project.folder / "run.sh").write_text(
        ALONE.replace("localhost:29500", '"$MASTER_ADDR:$MASTER_PORT"')
    )
    corrected = project.run("launch", *once, "--", "bash", "run.sh")
    assert corrected.returncode == 0, corrected.stderr
    assert "run.sh" not in corrected.stderr.replace("command: bash run.sh", "")
    typed, own = "launch --dry-run --nodes 2", "--launcher direct --procs-per-node 1"
    refused = project.run(*typed.split(), "--", "bash", "run.sh")
    again = f"hint: to run it once per node: clusterctl {typed} {own} -- bash run.sh"
    assert (refused.returncode, again in refused.stderr.splitlines()) == (2, True)


def test_a_first_launch_plans_with_the_configuration_in_the_folder(project: Project) -> None:
    (project.folder / "acc.yaml").write_text("distributed_type: MULTI_CPU\nuse_cpu: true\n")
    given = ("--launcher", "accelerate", "--launcher-args=--config_file acc.yaml")
    answer = project.run("launch", "--dry-run", "--json", "--no-check", *given, "--", "job.py")
    event = json.loads(answer.stdout.splitlines()[-1])
    assert ["--multi_gpu" in node["launcher_argv"] for node in event["nodes"]] == [True] * 3


ALONE_FOR_LONG = """
import os, pathlib, socket, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
while not pathlib.Path("told").exists():
    time.sleep(0.05)
"""


@pytest.mark.soak  # test_gathering.py, test_join_monitor.py
def test_a_script_whose_other_nodes_never_join_is_told_and_goes_on(project: Project) -> None:
    (project.folder / "alone.py").write_text(ALONE_FOR_LONG)
    words = ("--procs-per-node", "1", "--start-timeout", "5", "--", "bash", "-c")
    launch = project.start("launch", "--launcher", "direct", *words, "python3 alone.py")
    assert launch.stderr is not None
    told = launch.stderr.readline()
    while "missing: node2:1, node3:2" not in told:
        assert launch.poll() is None, told
        told += launch.stderr.readline()
    assert "waiting: 1 of 3 ranks have joined" in told, told
    (project.placed / "told").touch()
    _, stderr = launch.communicate(timeout=BUSY)
    assert launch.returncode == 0, stderr


def test_the_first_failure_decides_and_the_others_are_stopped(project: Project) -> None:
    answer = project.launch("--json", "--env", "BAD=1", "--env", "CODE=7", "--", "job.py")
    assert answer.returncode == 7, answer.stderr
    ended = last_event(answer)
    assert (ended["kind"], ended["ended_by"], ended["state"]) == ("ended", "job", "failed")
    document = project.status()
    cause = document["first_cause"]
    assert (cause["node"], cause["rank"], cause["exit_code"]) == ("node2", 1, 7)
    assert cause["lines"][-1] == "rank 1 step 2"
    assert {node["state"] for node in document["nodes"]} == {"failed"}
    assert project.run("stop").returncode == 0


def test_the_launcher_of_the_command_line_is_the_one_that_is_judged(project: Project) -> None:
    inventory = project.folder / "slurm.yaml"
    inventory.write_text(project.inventory.read_text() + "job: {launcher: slurm}\n")
    refused = project.run("launch", "-i", str(inventory), "--", "job.py")
    assert refused.returncode == 2
    assert "job.slurm.nodes: expected the number of nodes" in refused.stderr
    answer = project.launch("-i", str(inventory), "--dry-run", "--no-check", "--", "job.py")
    assert answer.returncode == 0, answer.stderr


def test_the_jobs_own_check_is_said_once_and_judges_a_launch_without_sync_too(
    project: Project,
) -> None:
    inventory = project.folder / "checked.yaml"
    job = {"check": ["-c", "import os, sys; sys.exit(os.environ.get('RATE') != '1')"]}
    inventory.write_text(project.inventory.read_text() + yaml.safe_dump({"job": job}))
    argv = ("-i", str(inventory), "--env", "STEPS=1", "--env")
    good = project.launch(*argv, "RATE=1", "--", "job.py")
    assert good.returncode == 0, good.stderr
    assert good.stderr.count("checks in ") == 1
    assert "job.check: passed on all 3 nodes" in good.stderr.splitlines()
    for flags in ((), ("--no-sync",)):
        bad = project.launch(*flags, *argv, "RATE=2", "--", "job.py")
        assert bad.returncode == 125, bad.stdout + bad.stderr
        assert "FAIL job.check  all 3 nodes" in bad.stderr


def until_step(controller: subprocess.Popen[str], step: int) -> None:
    """Read a follower's lines until a step is shown."""
    assert controller.stdout is not None
    assert controller.stderr is not None
    while f"step {step}" not in controller.stdout.readline():
        assert controller.poll() is None, controller.stderr.read()


def must_be_whole(stdout: str) -> None:
    """Assert that every rank's steps are there from the first on, each once."""
    for rank in range(3):
        found = lines_of(rank, stdout)
        assert found == [f"rank {rank} step {n}" for n in range(len(found))]
        assert found


def until_told(follower: subprocess.Popen[str], text: str) -> None:
    """Read what a follower says until a text is there."""
    assert follower.stderr is not None
    while text not in follower.stderr.readline():
        assert follower.poll() is None


def test_a_run_outlives_its_controller_and_a_lost_connection_costs_no_line(
    project: Project,
) -> None:
    controller = project.start("launch", "--launcher", "direct", *LONG, "--", "job.py")
    until_step(controller, 3)
    signal_all(controller, signal.SIGKILL)
    controller.communicate()
    project.wait_for("", "running")

    follower = project.start("logs", "-f", "--raw")
    until_step(follower, 2)
    project.sandbox.fault("node2", "sshd-killed")
    until_told(follower, "node2: connection lost")
    project.sandbox.heal()
    until_told(follower, "node2: reconnected")
    assert project.run("stop").returncode == 0
    stdout, _ = follower.communicate(timeout=BUSY)
    answer = project.run("logs", "-f", "--raw")
    assert answer.returncode == 0, answer.stderr
    must_be_whole(answer.stdout)
    for rank in range(3):
        assert lines_of(rank, answer.stdout)[-1] == lines_of(rank, stdout)[-1]
        assert len(lines_of(rank, stdout)) == len(set(lines_of(rank, stdout)))
        steps = [int(line.split()[-1]) for line in lines_of(rank, stdout)]
        assert steps == list(range(steps[0], steps[-1] + 1))
    assert project.status()["state"] == "stopped"


@pytest.mark.parametrize(
    "number",
    # The others are taken as an interrupt: test_signals.py.
    [
        signal.SIGINT,
        *(pytest.param(n, marks=pytest.mark.soak) for n in (signal.SIGHUP, signal.SIGTERM)),
    ],
    ids=lambda n: n.name,
)
def test_without_a_terminal_an_interrupt_leaves_the_run_alone(
    project: Project, number: signal.Signals
) -> None:
    follower = project.start(
        "launch", "--launcher", "direct", "--no-check", "--nodes", "1", *LONG, "--", "job.py"
    )
    until_step(follower, 1)
    signal_all(follower, number)
    _, stderr = follower.communicate(timeout=BUSY)
    assert follower.returncode == 130
    assert "follow it: clusterctl logs -f" in stderr
    project.wait_for("", "running")


def test_a_reader_that_has_gone_is_told_that_the_run_goes_on(project: Project) -> None:
    follower = project.start(
        "launch", "--launcher", "direct", "--no-check", "--nodes", "1", *LONG, "--", "job.py"
    )
    until_step(follower, 1)
    assert follower.stdout is not None
    follower.stdout.close()
    _, stderr = follower.communicate(timeout=BUSY)
    assert follower.returncode == 130
    assert "keeps running" in stderr
    assert "Traceback" not in stderr
    project.wait_for("", "running")


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM],
    ids=lambda n: n.name,
)
def test_an_interrupt_while_it_starts_ends_it_and_says_so(
    project: Project, number: signal.Signals
) -> None:
    inventory = project.folder / "slow.yaml"
    asked, released = (f"{project.folder.parent.name}-{name}" for name in ("asked", "released"))
    # Only a start has this variable when env_init runs: what is read before is not slow.
    slow = (
        f"if [ $CLUSTERCTL_RUN_ID ]; then touch /shared/{asked};"
        f" until [ -e /shared/{released} ]; do sleep 0.1; done; fi"
    )
    slow = f"job:\n  env_init: {json.dumps(slow)}\n"
    inventory.write_text(project.inventory.read_text() + slow)
    words = ("launch", "--no-check", "-i", str(inventory), "--launcher", "direct", "--", "job.py")
    launch = project.start(*words)
    assert launch.stderr is not None
    while not (project.sandbox.shared / asked).exists():
        assert launch.poll() is None, launch.stderr.read()
        time.sleep(0.02)
    (record,) = project.state.glob("*/*/record.json")
    run = record.parent.name
    signal_all(launch, number)
    _, stderr = launch.communicate(timeout=BUSY)
    assert launch.returncode == 130
    assert f"{run}: interrupted; nothing of it is left" in stderr
    assert project.status(run)["state"] == "stopped"
    assert json.loads((record.parent / "end.json").read_text())["message"].startswith("interrupted")
    (project.sandbox.shared / released).touch()
    time.sleep(1)
    assert project.launch("--", "job.py").returncode == 0, "it came up after all"


def test_an_interrupt_before_it_starts_says_that_nothing_runs(project: Project) -> None:
    launch = project.start("launch", "--launcher", "direct", "--json", "--", "job.py")
    assert launch.stdout is not None
    launch.stdout.readline()
    signal_all(launch, signal.SIGINT)
    stdout, stderr = launch.communicate(timeout=BUSY)
    assert launch.returncode == 130, (stdout, stderr)
    assert stderr.splitlines()[-1].startswith("interrupted; nothing was started")
    assert json.loads(stdout.splitlines()[-1])["ended_by"] == "stop"


def test_busy_nodes_refuse_a_second_launch_and_name_the_holder_and_others_take_it(
    project: Project,
) -> None:
    base = ("--detach", "--name", "base", "--nodes", "node1")
    started = project.launch(*base, *LONG, "--", "job.py")
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip()
    refused = project.launch("--json", "--no-check", "--", "job.py")
    assert refused.returncode == 125
    assert run in refused.stderr
    assert last_event(refused)["ended_by"] in {"busy", "sync"}
    checked = project.launch("--", "job.py")
    assert checked.returncode == 125
    told = " ".join(checked.stderr.split())
    assert re.search(rf"run {run} 'base' \(job.py\) from \S+ of root since", told)
    assert f"clusterctl status {run} shows that run, clusterctl stop {run} ends it" in told
    assert "--force" not in checked.stderr  # it is refused, too:
    forced = project.launch("--force", "--", "job.py")
    assert forced.returncode == 125
    elsewhere = replace(project, state=project.state.with_name("elsewhere"))
    assert elsewhere.status("base")["run"] == run
    assert elsewhere.status()["name"] == "base"
    listed = json.loads(elsewhere.run("runs", "--json").stdout)["runs"]
    assert listed[0]["name"] == "base"
    # Another run has nodes and a workdir of its own.
    (project.folder / "job.py").write_text("import os; print('in', os.getcwd(), flush=True)")
    other = f"{project.workdir}-second"
    second = project.launch("--nodes", "node[2-3]", "--workdir", other, "--", "job.py")
    assert second.returncode == 0, second.stderr
    printed = [line.partition("] ")[2] for line in second.stdout.splitlines()]
    assert set(printed) == {f"in {other}"}  # one line for both ranks, or two on a busy machine
    assert elsewhere.run("status", run).stdout.startswith(f"{run} (base)  running")
    typed = list(commands("\n".join(re.findall("^hint: .*", forced.stderr, re.MULTILINE))))
    assert typed == [("status", run), ("stop", run)]
    for words in typed:
        assert project.run(*words).returncode == 0


def test_a_command_that_does_not_exist_starts_nothing(project: Project) -> None:
    answer = project.launch("--", "no-such-program", "--flag")
    assert answer.returncode == 125
    assert "command not found: no-such-program" in answer.stderr
    assert "Traceback" not in answer.stderr
    (refused,) = project.state.glob("*/*/record.json")
    document = project.status(refused.parent.name)
    assert (document["state"], document["ended_by"]) == ("failed", "start")


@pytest.mark.soak  # the firewall's, below; test_supervisor.py has one that never comes
def test_ranks_that_do_not_join_end_the_run(project: Project) -> None:
    (project.folder / "late.py").write_text(
        "import os, runpy, time\n"
        "if os.environ['RANK'] == '2': time.sleep(600)\n"
        "runpy.run_path('job.py')\n"
    )
    answer = project.launch("--json", "--start-timeout", "15", "--", "late.py")
    assert answer.returncode == 125
    ended = last_event(answer)
    assert ended["ended_by"] == "start-timeout"
    assert "node3:2" in str(ended["first_cause"])
    assert re.search(r"; node3: rank 2 has (run for|not started)", str(ended["first_cause"]))


def test_a_firewall_of_the_master_is_named_for_all_that_do_not_reach_it(project: Project) -> None:
    project.sandbox.fault("node1", "port-dropped")
    words = ("--no-check", "--master-port", "29500", "--start-timeout", "5")
    answer = project.launch(*words, "--", "job.py")
    assert answer.returncode == 125
    address = project.sandbox.hosts[0].address
    found = re.search(r"first cause: node1: node2 and node3 ([^;\n]*)", answer.stderr)
    assert found, answer.stderr
    assert found[1] in {f"do not reach {address}:29500", f"have not reached {address}:29500"}
    assert "look at node1's firewall" in answer.stderr
    assert "--master-port P" in answer.stderr
    run = project.run("status")
    assert f"{address}:29500" in run.stdout
    recorded = json.loads(project.run("runs", "--json").stdout)["runs"][0]
    assert (recorded["state"], recorded["ended_by"]) == ("failed", "start-timeout")


def test_a_dry_run_starts_nothing_and_says_where_values_come_from(project: Project) -> None:
    answer = project.launch("--dry-run", "--env", "A=b c", "--", "job.py", "x y")
    assert answer.returncode == 0, answer.stderr
    assert "job.py 'x y'" in answer.stdout
    assert "A='b c'" in answer.stdout
    assert "(--env)" in answer.stdout
    parts = re.compile(r"^(?:every node|node\d: .*)\n(?:  .*\n?)+", re.MULTILINE)
    common, *nodes = parts.findall(answer.stdout)
    assert "A='b c'" in common
    assert [node.split(":")[0] for node in nodes] == ["node1", "node2", "node3"]
    assert not [node for node in nodes if "A='b c'" in node or "NCCL_SOCKET_IFNAME" not in node]
    assert not list(project.state.rglob("record.json"))


def test_unhealthy_nodes_are_left_out_and_the_others_run(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=4))
    project.sandbox.fault("node4", "shared-unmounted")
    project.sandbox.fault("node1", "sshd-killed")
    answer = project.launch("--exclude-unhealthy", "--", "job.py")
    assert answer.returncode == 0, answer.stderr
    for node in ("node1", "node4"):
        assert f"left out: {node}: " in answer.stderr
    assert [each["node"] for each in project.status()["nodes"]] == ["node2", "node3"]


def test_a_missing_secret_is_an_error_before_anything(project: Project) -> None:
    inventory = project.inventory.read_text()
    mine = project.folder / "mine.yaml"
    mine.write_text(inventory + "job:\n  env_from: [EVIL_SECRET]\n")
    words = ("-i", str(mine), "--", "echo.py")
    refused = project.launch(*words)
    assert refused.returncode == 2
    assert "EVIL_SECRET" in refused.stderr
    answer = project.launch(*words, env={"EVIL_SECRET": "hunter2"})
    assert answer.returncode == 0, answer.stderr
    assert '"EVIL_SECRET": "hunter2"' in answer.stdout
    written = b"".join(path.read_bytes() for path in project.state.rglob("*") if path.is_file())
    assert b"EVIL_SECRET" in written
    assert b"hunter2" not in written


def test_a_run_that_nobody_knows_is_an_error(project: Project) -> None:
    for verb in ("stop", "status", "logs"):
        answer = project.run(verb, "no-such-run")
        assert answer.returncode == 1
        assert "run no-such-run is known neither here nor on the nodes" in answer.stderr
        assert "hint: clusterctl runs" in answer.stderr
