"""Pings beside a check: on a machine that allows few processes they are left out, nothing more."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.verbs.preflight import ping
from clusterctl.verbs.preflight.ping import Pings
from tests.waiting import wait_until

PIDS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


def cluster_of(count: int) -> Cluster:
    nodes = (Node(host=f"n{i}.invalid", name=f"n{i}", ssh=Ssh(port=9)) for i in range(count))
    return Cluster(name="t", nodes=tuple(nodes))


def test_a_process_that_cannot_be_started_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("shutil.which", lambda _: "/bin/ping")
    monkeypatch.setattr(subprocess, "Popen", refuse)
    pings = Pings(cluster_of(3))
    assert pings.answers() == {}
    pings.close()


def test_a_few_run_at_once_and_each_node_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ping, "AT_ONCE", 2)
    program = tmp_path / "ping"
    program.write_text(
        f"#!/bin/sh\nfor host; do :; done\necho + >>{tmp_path}/log\nsleep 0.05\n"
        f"echo - >>{tmp_path}/log\n"
        'case "$host" in n0.*|n3.*) exit 1;; n4.*) exit 2;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(program))
    pings = Pings(cluster_of(6))
    answers = pings.answers()
    assert answers == {
        "n0": "silent", "n1": "ok", "n2": "ok", "n3": "silent", "n4": "", "n5": "ok"
    }  # fmt: skip
    at_once = most = 0
    for line in (tmp_path / "log").read_text().split():
        at_once += 1 if line == "+" else -1
        most = max(most, at_once)
    assert most == 2


def test_closing_ends_those_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ping"
    program.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/pids\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(program))
    monkeypatch.setattr(ping, "SECONDS", 60)
    pings = Pings(cluster_of(3))
    while not (tmp_path / "pids").exists():
        pass
    pings.close()
    for pid in (tmp_path / "pids").read_text().split():
        assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def pids_group() -> Iterator[Path]:
    """Make a control group that limits processes, as a container's."""
    parent = next((p for p in PIDS if (p / "cgroup.procs").exists()), None)
    if parent is None or os.geteuid():
        pytest.skip("control groups need root")
    group = parent / f"clusterctl-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    if not (group / "pids.max").exists():
        group.rmdir()
        pytest.skip("no pids controller here")
    yield group
    # What was starting when the command left ends by itself, at once.
    wait_until(lambda: not (group / "cgroup.procs").read_text(), 10)
    group.rmdir()


@pytest.mark.parametrize("limit", [8, 24])
def test_check_in_a_container_that_allows_few_processes(
    pids_group: Path, tmp_path: Path, limit: int
) -> None:
    hosts = "".join(f"  - n{number}.invalid\n" for number in range(40))
    (tmp_path / "hosts.yaml").write_text(f"cluster: t\nssh: {{port: 9}}\nnodes:\n{hosts}")
    (pids_group / "pids.max").write_text(f"{limit}\n")
    check = [sys.executable, "-m", "clusterctl", "check"]
    done = subprocess.run(
        ["/bin/sh", "-c", f'echo $$ >{pids_group}/cgroup.procs; exec "$@"', "sh", *check],
        cwd=tmp_path,
        env={**os.environ, "CLUSTERCTL_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {1, 3}, done.stderr
    assert "bug" not in done.stdout + done.stderr
    if done.returncode == 3:
        assert "this machine allows no more threads" in done.stderr
        assert "--pids-limit" in done.stderr
