"""Runs that go on from a checkpoint, and what of the person's reaches the job to the letter."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.conftest import MakeProject
from tests.cli.runs import Project, checkpoint, signal_all
from tests.conftest import MakeSandbox
from tests.waiting import BUSY, wait_until

pytestmark = pytest.mark.netns

EVIL = (
    "two words",
    "it's",
    'say "hi"',
    "$HOME ${HOME} $(id) `id`",
    "a;b|c&d>e<f",
    "*.py [a-z]? {x,y} ~ !! #no",
    "line\nbreak\ttab",
    '{"json": [1, "two"], "back\\\\slash": null}',
    "",
    "ünïcödé 漢字 🙂",
    "-n",
    "%s %d \\n",
    "' \" \\",
)


def lose_a_shard(path: Path) -> None:
    (path / "__0_0.distcp").unlink()


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[7] ^= 1
    (path / "__0_0.distcp").write_bytes(data)


@pytest.fixture
def trained(project: Project) -> Project:
    """A project whose job has run once, with two checkpoints on the shared folder."""
    inventory = project.inventory.read_text()
    (project.folder / "hosts.yaml").write_text(
        inventory
        + "job:\n  launcher: direct\n  command: [echo.py, base]\n  checkpoints: out\n"
        + '  resume_args: [--from, "{checkpoint}"]\n'
    )
    answer = project.run("launch", "-i", "hosts.yaml", "--name", "base")
    assert answer.returncode == 0, answer.stderr
    run = project.status()["run"]
    for step in (10, 20):
        checkpoint(project.placed / "out", step, run)
    return project


def resume(project: Project, which: str, *words: str) -> tuple[int, str, str]:
    answer = project.run("resume", "-i", "hosts.yaml", "--checkpoint", which, *words)
    return answer.returncode, answer.stdout, answer.stderr


def test_resume_from_the_latest_on_nodes_of_the_run_from_any_controller(
    trained: Project, tmp_path: Path
) -> None:
    (trained.folder / "more.py").write_text("")
    code, stdout, stderr = resume(trained, "latest", "--nodes", "2")
    assert code == 0, stderr
    newest = f"{trained.workdir}/out/step-000020"
    assert f'["base", "--from", "{newest}"]' in stdout
    assert f"checkpoint {newest} (clusterctl, step 20)" in stderr
    assert "the code differs from that of the run (just synced: more.py)" in stderr
    listed = json.loads(trained.run("runs", "--json").stdout)["runs"][0]
    assert (listed["checkpoint"], listed["name"]) == (newest, "base")
    assert listed["nodes"] == ["node1", "node2"]
    both = trained.run("logs", listed["short"], "--chain", "--rank", "0", "--json").stdout
    first, second = (json.loads(line) for line in both.splitlines())
    assert (first["run"], second["run"]) == (listed["parent"], listed["run"])
    assert "--from" not in first["line"]
    assert f'"--from", "{newest}"' in second["line"]

    # Another controller knows the ancestors of the run from its nodes.
    other = replace(trained, state=tmp_path / "another-laptop")
    found = other.run("runs", "-i", "hosts.yaml", "--discover", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["runs"][0]["checkpoint"] == newest
    # Without a node it takes the others of the run, and no more. An inventory is no code.
    with (trained.folder / "hosts.yaml").open("a") as inventory:
        inventory.write("# a note\n")
    code, stdout, stderr = resume(other, "latest", "--exclude", "node1")
    assert code == 0, stderr
    assert "the code differs" not in stderr
    assert f"checkpoint {newest} (clusterctl, step 20)" in stderr
    assert f'["base", "--from", "{newest}"]' in stdout
    assert [node["host"] for node in other.status()["nodes"]] == ["node2"]


def test_each_run_has_a_folder_of_its_own_and_a_resume_knows_the_one_before(
    project: Project,
) -> None:
    job = "job: {launcher: direct, command: [echo.py, --out, 'out/{run}'], checkpoints: 'out/{run}'"
    more = """, resume_args: [--from, "{checkpoint}", "{{run}}"], env: {EVIL_OUT: "/x/{name}"}}\n"""
    (project.folder / "hosts.yaml").write_text(project.inventory.read_text() + job + more)
    unnamed = project.run("launch", "-i", "hosts.yaml", "--nodes", "1")
    assert (unnamed.returncode, "env.EVIL_OUT: expected the run's name" in unnamed.stderr) == (
        2,
        True,
    )
    first = project.run("launch", "-i", "hosts.yaml", "--nodes", "1", "--name", "base")
    assert first.returncode == 0, first.stderr
    before = project.status()["run"]
    assert f'[["--out", "out/{before}"], {{"EVIL_OUT": "/x/base"}}]' in first.stdout
    checkpoint(project.placed / "out" / before, 10, before)
    code, stdout, stderr = resume(project, "latest", "--name", "base")
    assert code == 0, stderr
    document = project.status()
    run, taken = document["run"], f"{project.workdir}/out/{before}/step-000010"
    assert run != before
    assert f'[["--out", "out/{run}", "--from", "{taken}", "{{run}}"]' in stdout
    assert (document["checkpoints"], document["checkpoint"]["run"]) == (f"out/{run}", before)


@pytest.mark.soak  # test_recorded_job.py
def test_what_the_inventory_says_of_checkpoints_since_the_launch_counts(project: Project) -> None:
    hosts = project.folder / "hosts.yaml"
    job = "job:\n  launcher: direct\n  command: [echo.py, base]\n"
    hosts.write_text(project.inventory.read_text() + job)
    here = {"CLUSTERCTL_INVENTORY": "hosts.yaml"}
    assert project.run("launch", env=here).returncode == 0
    refused = project.run("resume", "--checkpoint", "latest", env=here)
    assert refused.returncode == 2
    assert "job.resume_args: expected {checkpoint}" in refused.stderr
    assert "job: {checkpoints: FOLDER, resume_args: [" in refused.stderr
    run = json.loads(project.run("status", "--json", env=here).stdout)["run"]
    checkpoint(project.placed / "later", 30, run)
    job += '  checkpoints: later\n  resume_args: [--from, "{checkpoint}"]\n  env: {LR: "2"}\n'
    hosts.write_text(project.inventory.read_text() + job)
    answer = project.run("resume", "--checkpoint", "latest", env=here)
    assert answer.returncode == 0, answer.stderr
    assert f'["base", "--from", "{project.workdir}/later/step-000030"]' in answer.stdout
    assert "job.checkpoints and job.resume_args: taken from the inventory" in answer.stderr
    assert answer.stderr.count("changed since") == 1
    assert f"warning: hosts.yaml: job.env.LR changed since {run} was launched" in answer.stderr
    assert "(to use the new: --env NAME=VALUE)" in answer.stderr
    hosts.write_text(hosts.read_text().replace("- host: node3\n", ""))
    named = ("resume", run, "--checkpoint", "latest")
    answer = project.run(*named, "--env", "LR=2", env=here)
    assert answer.returncode == 0, answer.stderr
    assert "it lacks node3; using the nodes as" in answer.stderr
    assert "changed since" not in answer.stderr
    assert f'["base", "--from", "{project.workdir}/later/step-000030"]' in answer.stdout


@pytest.mark.soak  # test_choose.py, test_checkpoints.py
def test_a_spoilt_checkpoint_is_refused_and_only_latest_falls_back(trained: Project) -> None:
    code, _, stderr = resume(trained, "nowhere/step-1")
    assert code == 125
    assert "there is no" in stderr
    complete = f"{trained.workdir}/out/step-000010"
    for spoil, why in ((flip_a_bit, "is changed"), (lose_a_shard, "is missing")):
        spoil(trained.placed / "out" / "step-000020")
        code, _, stderr = resume(trained, "out/step-000020")
        assert code == 125
        assert f"__0_0.distcp {why}" in stderr
        hint = "hint: the newest complete one: clusterctl resume -i hosts.yaml --checkpoint"
        assert f"{hint} {complete}\n" in stderr
        assert "Traceback" not in stderr
    code, stdout, stderr = resume(trained, "latest")
    assert code == 0, stderr
    assert "skipped: step-000020" in stderr
    assert complete in stdout


OWN = """
import os, pickle, signal, sys, time, zipfile
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.environ["RANK"] == "0":
    os.makedirs("ckpt", exist_ok=True)
    first = 1
    if len(sys.argv) > 1:
        with zipfile.ZipFile(sys.argv[1]) as file:
            first += int(file.read("archive/step"))
    print("begins with step", first, flush=True)
    for step in range(first, int(os.environ["UNTIL"]) + 1):
        if step % 10 == 0:
            with zipfile.ZipFile(f"ckpt/step{step}.pt", "w") as file:
                file.writestr("archive/data.pkl", pickle.dumps({"step": step}))
                file.writestr("archive/step", str(step))
    print("saved", flush=True)
while os.environ.get("WAITS"):
    time.sleep(0.1)
"""
"""A person's own script: no framework, its checkpoints are step*.pt, archives as torch's."""


@pytest.mark.soak  # test_choose.py
def test_latest_is_of_the_run_that_is_resumed_though_an_earlier_one_came_further(
    project: Project,
) -> None:
    (project.folder / "own.py").write_text(OWN)
    (project.folder / "hosts.yaml").write_text(
        project.inventory.read_text()
        + "job:\n  launcher: direct\n  command: [own.py]\n  checkpoints: ckpt\n"
        + '  resume_args: ["{checkpoint}"]\n'
    )
    launch = ("launch", "-i", "hosts.yaml", "--nodes", "1", "--no-check", "--env")
    first = project.run(*launch, "UNTIL=60")
    assert first.returncode == 0, first.stderr
    assert project.status()["checkpoint"]["step"] == 60
    early = project.run(*launch, "UNTIL=5")
    assert early.returncode == 0, early.stderr
    document = project.status()
    assert document["checkpoint"] is None
    run = document["run"]
    code, _, stderr = resume(project, "latest")
    assert code == 125
    assert f"no checkpoint of {run} in ckpt; step60.pt: it was written before {run} began" in stderr
    named = f"clusterctl resume {run} --checkpoint ckpt/step60.pt"
    assert f"hint: to take step60.pt for this run: {named}" in stderr

    with project.start(*launch, "UNTIL=10", "--env", "WAITS=1") as second:
        assert second.stdout is not None
        next(line for line in second.stdout if "saved" in line)
        stopped = project.run("stop", "-i", "hosts.yaml")
        assert stopped.returncode == 0, stopped.stderr
        second.communicate(timeout=60)
    document = project.status()
    assert document["checkpoint"]["step"] == 10
    run = document["run"]
    wanted = ("--no-check", "--env", "UNTIL=19", "--env", "WAITS=")
    answer = project.run(
        "resume", "-i", "hosts.yaml", "--checkpoint", "latest", *wanted, seconds=90
    )
    assert answer.returncode == 0, answer.stderr
    assert "begins with step 11" in answer.stdout
    assert f"clusterctl resume {run} --checkpoint ckpt/step60.pt takes it" in answer.stderr
    assert project.status()["checkpoint"]["step"] == 10  # of the run that was resumed

    typed = ("resume", run, "-i", "hosts.yaml", "--checkpoint", "ckpt/step60.pt", *wanted)
    answer = project.run(*typed, seconds=90)
    assert answer.returncode == 0, answer.stderr
    assert "begins with step 61" in answer.stdout


def processes(box: Sandbox, node: str) -> set[str]:
    """Return what runs on a node, but for the look itself and sshd's own."""
    lines = box.on(node, ["ps", "-eo", "pid,args"]).stdout.splitlines()
    return {line.strip() for line in lines if " ps -eo" not in line and "sshd" not in line}


def test_a_folder_on_a_dead_mount_is_reported_and_no_agent_stays(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    box = make_sandbox(nodes=2)
    project = make_project(box)
    (project.folder / "hosts.yaml").write_text(
        project.inventory.read_text()
        + "job:\n  launcher: direct\n  command: [echo.py]\n  checkpoints: out\n"
        + '  resume_args: ["{checkpoint}"]\n'
    )
    answer = project.run("launch", "-i", "hosts.yaml")
    assert answer.returncode == 0, answer.stderr
    checkpoint(project.placed / "out", 10, project.status()["run"])
    box.fault("node2", "hung-mount")
    before = processes(box, "node2")
    code, _, stderr = resume(project, "latest")
    assert code == 125
    late = f"node2: {project.workdir}/out does not answer: nothing came from it for 15 s"
    assert late in stderr
    code, _, stderr = resume(project, "/root/nowhere.pt")
    assert code == 125
    assert "there is no /root/nowhere.pt" in stderr
    wait_until(lambda: processes(box, "node2") == before, seconds=10)

    with project.start("resume", "-i", "hosts.yaml", "--checkpoint", "latest") as process:
        wait_until(lambda: processes(box, "node2") > before)
        signal_all(process, signal.SIGINT)
        process.communicate(timeout=BUSY)
    wait_until(lambda: not processes(box, "node2") - before, seconds=10)


def test_arguments_and_values_arrive_to_the_letter(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    shells = ("fish+noise", "tcsh")  # test_login_shells.py of tests/transport has all
    project = make_project(make_sandbox(nodes=len(shells), shells=shells))
    wanted = {f"EVIL_{number}": value for number, value in enumerate(EVIL)}
    env = [word for name, value in wanted.items() for word in ("--env", f"{name}={value}")]
    answer = project.launch(*env, "--json", "--", "echo.py", *EVIL)
    assert answer.returncode == 0, answer.stderr
    events = [json.loads(line) for line in answer.stdout.splitlines()]
    said = [json.loads(event["line"]) for event in events if event["kind"] == "line"]
    assert said == [[list(EVIL), wanted]] * len(shells)
