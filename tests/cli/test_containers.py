"""A job in containers of a real Docker daemon: as on the hosts themselves, and nothing stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox
from tests.waiting import BUSY, wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="starts a Docker daemon, which needs root"),
    pytest.mark.skipif(shutil.which("dockerd") is None, reason="needs dockerd (make setup)"),
]


def environment_of(path: str) -> str:
    """Return the environment that a folder of packages belongs to; empty: none."""
    before, found, _ = path.partition("/lib/python")
    return before if found else ""


IMAGE = "empty:1"
HOST_FOLDERS = dict.fromkeys(
    ["/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix]
    # Where only the wheel is installed, the packages are in another environment.
    + [path for path in map(environment_of, sys.path) if path]
)
"""The image is empty: the programs are the machine's."""


@dataclass(frozen=True)
class Docker:
    """A daemon of the tests' own."""

    host: str

    def __call__(self, *words: str) -> str:
        argv = ["docker", "--host", self.host, *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    """Start a Docker daemon that touches no network of this machine; it has one empty image."""
    folder = Path(tempfile.mkdtemp(prefix="dockerd-"))
    docker = Docker(f"unix://{folder}/socket")
    argv = [
        *("dockerd", "--host", docker.host, "--bridge=none", "--iptables=false"),
        *("--ip-forward=false", "--ip-masq=false", "--storage-driver=vfs"),
        *(f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"),
    ]
    own = {
        **os.environ,
        "TMPDIR": str(folder),
    }  # containerd, if it is slow, writes its stacks there
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen(argv, stdout=log, stderr=log, env=own)
    try:
        until = time.monotonic() + BUSY
        while not (folder / "socket").exists():
            assert daemon.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < until, "dockerd did not start"
            time.sleep(0.1)
        subprocess.run(["tar", "-cf", folder / "empty.tar", "-T", "/dev/null"], check=True)
        docker("import", str(folder / "empty.tar"), IMAGE)
        yield docker
    finally:
        daemon.terminate()
        daemon.wait(BUSY)
        # It keeps the network of containers with the host's as a mount, which stays behind.
        for mount in (folder / "exec" / "netns").glob("*"):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def contained(docker: Docker, make_sandbox: MakeSandbox, make_project: MakeProject) -> Project:
    """A project for two hosts, whose job runs in containers."""
    project = make_project(make_sandbox(backend="loopback", nodes=2))
    mounts = [word for path in HOST_FOLDERS for word in ("-v", f"{path}:{path}:ro")]
    job = {
        "launcher": "direct",
        "wrap": [str(shutil.which("docker")), "run", *mounts, IMAGE],
        "env": {"DOCKER_HOST": docker.host},
    }
    document = yaml.safe_load(project.inventory.read_text())
    project.inventory.write_text(yaml.safe_dump({**document, "job": job}, sort_keys=False))
    return project


def running(docker: Docker) -> list[str]:
    return docker("ps", "--all", "--quiet").split()


def wait_for_containers(docker: Docker, count: int) -> None:
    wait_until(lambda: len(running(docker)) == count, why=lambda: docker("ps", "--all"))


def test_the_ranks_meet_inside_and_the_hosts_secret_reaches_them_unseen(
    docker: Docker, contained: Project
) -> None:
    document = yaml.safe_load(contained.inventory.read_text())
    document["job"]["env_from"] = ["EVIL_TOKEN"]
    contained.inventory.write_text(yaml.safe_dump(document))
    (contained.folder / "inside.py").write_text(
        "import os\n"
        "exec(open('job.py').read())\n"
        "print(rank, 'contained', not os.path.exists('/etc/passwd'), os.environ['EVIL_TOKEN'])\n"
    )
    done = contained.run("launch", "--", "inside.py", env={"EVIL_TOKEN": "tell-nobody"})
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"{rank} contained True tell-nobody" in done.stdout
    planned = contained.run("launch", "--dry-run", "--json", "--", "inside.py").stdout
    assert "--env=EVIL_TOKEN" in planned
    assert "tell-nobody" not in planned
    assert running(docker) == []


@pytest.mark.soak  # below, torchrun's does
def test_a_rank_that_fails_ends_the_containers_of_all(docker: Docker, contained: Project) -> None:
    done = contained.run("launch", "--env", "BAD=1", "--env", "CODE=7", "--", "job.py")
    assert done.returncode == 7, done.stderr
    assert "rank 1: exited with 7" in done.stderr
    assert running(docker) == []


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


@pytest.mark.soak  # below, a supervisor is killed, and the other one removes its own
def test_a_stop_removes_containers_that_ignore_it(docker: Docker, contained: Project) -> None:
    (contained.folder / "stubborn.py").write_text(STUBBORN)
    assert contained.run("launch", "--detach", "--", "stubborn.py").returncode == 0
    wait_for_containers(docker, 2)
    stopped = contained.run("stop", "--grace", "0")
    assert stopped.returncode == 0, stopped.stderr
    assert running(docker) == []


@pytest.mark.parametrize(
    "guard",
    [
        pytest.param(False, id="supervisor"),
        pytest.param(True, id="with its guard", marks=pytest.mark.soak),
    ],
)
def test_what_a_killed_supervisor_leaves_is_removed(
    docker: Docker, contained: Project, *, guard: bool
) -> None:
    (contained.folder / "stubborn.py").write_text(STUBBORN)
    assert contained.run("launch", "--detach", "--", "stubborn.py").returncode == 0
    wait_for_containers(docker, 2)
    (where,) = contained.sandbox.folder("node1").glob("state/*/*/*/supervisor.json")
    saved = json.loads(where.read_text())
    if guard:
        os.kill(saved["guard"][0], signal.SIGKILL)
    os.kill(saved["pid"], signal.SIGKILL)
    if guard:
        assert contained.run("stop", "--grace", "0").returncode == 0
    wait_for_containers(docker, 0)
    assert contained.run("stop").returncode == 0, "it was verified"


def test_an_image_that_a_node_lacks_is_named_before_anything_starts(
    docker: Docker, contained: Project
) -> None:
    text = contained.inventory.read_text()
    contained.inventory.write_text(text.replace(IMAGE, "trainer:9"))
    checked = contained.run("check", "--json")
    assert checked.returncode == 1
    (finding,) = [f for f in json.loads(checked.stdout)["findings"] if f["status"] == "fail"]
    assert finding["check"] == "job.container"
    assert "no image trainer:9" in finding["message"]
    assert "docker pull trainer:9" in finding["remedy"]


@pytest.mark.torch
def test_a_launcher_starts_its_ranks_inside(docker: Docker, contained: Project) -> None:
    document = yaml.safe_load(contained.inventory.read_text())
    document["job"]["launcher"] = "torchrun"
    document["defaults"] |= {"procs": 2}
    contained.inventory.write_text(yaml.safe_dump(document))
    (contained.folder / "killed.py").write_text(
        "import os, time\n"
        "print('of', os.environ['WORLD_SIZE'], flush=True)\n"
        "if os.environ['RANK'] == '3':\n"
        "    os.kill(os.getpid(), 9)\n"
        "time.sleep(600)\n"
    )
    done = contained.run("launch", "--", "killed.py")
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "first cause: 127.0.0.1" in done.stderr
    assert "rank 3" in done.stderr.partition("first cause")[2]
    assert "of 4" in done.stdout
    assert running(docker) == []
