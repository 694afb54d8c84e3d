"""A controller is killed in the middle of a verb: what is left is named, and the next mends it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

import pytest
import yaml

from tests.cli.runs import Project, signal_all
from tests.waiting import BUSY

pytestmark = pytest.mark.netns

HOSTS = ("node1", "node2", "node3")
LONG = ("--env", "STEPS=6000")

RSYNC = """#!/bin/sh
mkdir {folder}/first && {{ {rsync} "$@"; code=$?; touch {folder}/sent; exit $code; }}
touch {folder}/blocked-$$
until [ -e {folder}/released ]; do sleep 0.1; done
"""
"""The first brings its files; the others bring none."""

WAITS = """
[ -z "$CLUSTERCTL_RUN_ID" ] || [ "$(hostname)" = node1 ] || {{
    touch {names}-$(hostname)
    until [ -e {names}-released ]; do sleep 0.1; done
}}
"""
"""An `env_init` that holds all nodes but the master, once they are to start their part."""

DEAF = """
import runpy, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
runpy.run_path("job.py")
"""


def kill_when(reached: Callable[[], bool], controller: subprocess.Popen[str]) -> None:
    """Kill -9 a command once it has come so far."""
    until = time.monotonic() + BUSY
    while not reached():
        assert controller.poll() is None, controller.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    signal_all(controller, signal.SIGKILL)
    controller.communicate()


def configure(project: Project, **settings: object) -> None:
    document = yaml.safe_load(project.inventory.read_text())
    project.inventory.write_text(yaml.safe_dump(document | settings))


def on_hosts(project: Project, line: str) -> list[str]:
    return [project.sandbox.on(host, ["sh", "-c", line]).stdout for host in HOSTS]


def living(project: Project, words: Sequence[str]) -> list[str]:
    """Return the processes on the hosts whose command holds one of the words."""
    shown = "".join(on_hosts(project, "ps -eo stat=,args=")).splitlines()
    return [line for line in shown if line[0] != "Z" and any(word in line for word in words)]


def test_a_sync_that_was_cut_off_is_completed_by_the_next(project: Project) -> None:
    workdir = f"/workspace/{project.placed.name}"
    configure(project, workdir=workdir)
    for name in ("changed", "edited", "deleted"):
        (project.folder / f"{name}.py").write_text("old")
    assert project.run("sync").returncode == 0
    on_hosts(project, f"cd {workdir} && mkdir out && echo weights > out/w && echo mine > edited.py")
    for name in ("changed", "edited"):
        (project.folder / f"{name}.py").write_text("new")
    (project.folder / "deleted.py").unlink()
    (project.folder / "big").write_bytes(os.urandom(5 << 20))  # small files need no rsync

    stand_in = project.folder.parent / "bin"
    stand_in.mkdir()
    rsync = stand_in / "rsync"
    rsync.write_text(RSYNC.format(folder=stand_in, rsync=shutil.which("rsync")))
    rsync.chmod(0o755)
    path = f"{stand_in}:{project.sandbox.environment()['PATH']}"
    cut = project.start("sync", env={"PATH": path})
    kill_when(lambda: (stand_in / "sent").exists() and len([*stand_in.glob("blocked-*")]) == 2, cut)
    (stand_in / "released").touch()
    assert sorted(on_hosts(project, f"cat {workdir}/changed.py")) == ["new", "old", "old"]

    refused = project.run("launch", "--no-sync", "--no-check", "--", "job.py")
    assert refused.returncode == 125
    assert f"the last sync of workdir {workdir} did not finish" in refused.stderr
    assert "hint: the node suggests: clusterctl sync" in refused.stderr

    answer = project.run("sync", "--json")
    assert answer.returncode == 0, answer.stderr
    sent = sorted(node["sent"] for node in json.loads(answer.stdout)["nodes"])
    assert sent == [0, 3, 3]
    shown = "ls; cat changed.py edited.py out/w .clusterctl/replaced/*/edited.py"
    listed = "big\nchanged.py\necho.py\nedited.py\njob.py\nout\n"
    assert on_hosts(project, f"cd {workdir} && {shown}") == [listed + "newnewweights\nmine\n"] * 3


def test_a_run_of_the_master_alone_is_named_and_stopped(project: Project) -> None:
    names = f"{project.workdir}-held"
    held = [project.placed.with_name(f"{project.placed.name}-held-{host}") for host in HOSTS[1:]]
    configure(project, job={"env_init": WAITS.format(names=names), "launcher": "direct"})
    launch = project.start("launch", "--no-check", *LONG, "--", "job.py")
    kill_when(lambda: all(path.exists() for path in held), launch)

    document = project.status()
    assert [node["state"] for node in document["nodes"]] == ["running", "absent", "absent"]
    refused = project.run("launch", "--no-check", "--", "job.py")
    assert refused.returncode == 125
    assert f"the machine is busy: run {document['run']}" in refused.stderr
    stopped = project.run("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert f"{document['run']}: stopped and verified on node1, node2, node3" in stopped.stdout
    assert living(project, ("job.py", "-held-")) == []

    held[0].with_name(f"{project.placed.name}-held-released").touch()
    (project.folder / "new.py").touch()
    answer = project.run("launch", "--no-check", "--", "job.py")
    assert answer.returncode == 0, answer.stderr
    assert "node1 (rank 0), node2 (rank 1), node3 (rank 2)" in answer.stderr


@pytest.mark.soak  # tests/chaos has stops
def test_a_stop_that_was_cut_off_goes_on_and_is_hastened_by_the_next(project: Project) -> None:
    (project.folder / "deaf.py").write_text(DEAF)
    run = project.launch("--detach", *LONG, "--", "deaf.py").stdout.strip()
    stop = project.start("stop", "--grace", str(10 * BUSY))

    def states() -> set[str]:
        return {node["state"] for node in project.status(run)["nodes"]}

    kill_when(lambda: states() == {"stopping"}, stop)
    assert project.status(run)["state"] == "stopping"
    assert len(living(project, ("deaf.py",))) == 3
    answer = project.run("stop", run, "--grace", "0")
    assert answer.returncode == 0, answer.stderr
    assert f"{run}: stopped and verified on node1, node2, node3" in answer.stdout
    assert living(project, ("deaf.py",)) == []
    assert project.status(run)["state"] == "stopped"
    for rank, written in enumerate(
        on_hosts(project, f"cat /var/tmp/clusterctl-0/*/{run}/*/ranks/*")
    ):
        steps = [line for line in written.splitlines() if "step" in line]
        assert steps == [f"rank {rank} step {n}" for n in range(len(steps))]
