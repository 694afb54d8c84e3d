"""`clusterctl init HOST...` on hosts that nobody has written an inventory of."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory import load
from clusterctl.sandbox.gpus import Gpus
from clusterctl.sandbox.layout import BackendName
from clusterctl.sandbox.sandbox import Sandbox
from tests.cli.test_json import validate
from tests.conftest import MakeSandbox

ROOT = Path(__file__).parents[2]
SECONDS = 120
TRAIN = """\
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
"""

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a new user's folder: a program and nothing else."""
    folder = tmp_path / "proj"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    return folder


def environment(folder: Path) -> None:
    """Make an environment that has this one's packages."""
    python = Path(sys.executable).resolve()
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    packages = folder / f"lib/python3.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (packages / "ours.pth").write_text(f"{Path(torch.origin).parents[1]}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python)
    (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n")


def home(box: Sandbox, node: str) -> Path:
    return box.folder(node) / ("root" if box.backend_name == "netns" else "home")


def clusterctl(box: Sandbox, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run clusterctl as a new user of the sandbox: no inventory, no state."""
    argv = [sys.executable, "-m", "clusterctl", *words]
    return box.run(argv, env={"CLUSTERCTL_INVENTORY": ""}, cwd=project, timeout=SECONDS)


@pytest.mark.parametrize("backend", [pytest.param("netns", marks=pytest.mark.soak), "loopback"])
def test_three_commands_lead_from_hosts_to_a_run(
    make_sandbox: MakeSandbox, project: Path, backend: BackendName
) -> None:
    box = make_sandbox(nodes=2, backend=backend)
    for host in box.hosts:
        environment(home(box, host.name) / "torch")
    done = clusterctl(box, project, "init", "node1", "node2")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "wrote hosts.yaml\nhint: clusterctl check\n"
    text = (project / "hosts.yaml").read_text()

    checked = clusterctl(box, project, "check")
    assert checked.returncode == 0, text + checked.stdout
    launched = clusterctl(box, project, "launch", "--", "train.py")
    assert launched.returncode == 0, text + launched.stderr
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(re.findall("rank .*", launched.stdout))


def test_what_is_found_is_written(make_sandbox: MakeSandbox, project: Path) -> None:
    box = make_sandbox(nodes=3, gpus=Gpus(model="H100", count=2))
    for node in ("node1", "node2"):
        environment(home(box, node) / "torch")
    environment(home(box, "node2") / "proj" / ".venv")  # likelier, but only there
    box.backend.power_off(box.host("node3"))

    done = clusterctl(box, project, "init", "node[1-3]")
    assert done.returncode == 3
    assert "warning: node3: unreachable (connect): " in done.stderr
    assert done.stderr.endswith("wrote hosts.yaml\nhint: clusterctl check\n")
    cluster = load(project / "hosts.yaml")
    assert (cluster.name, cluster.shared, cluster.subnet) == ("proj", ("/shared",), "10.77.0.0/24")
    assert [(n.host, n.gpus, n.python, n.workdir) for n in cluster.nodes] == [
        ("node1", 2, "/root/torch/bin/python", "/shared/proj"),
        ("node2", 2, "/root/torch/bin/python", "/shared/proj"),
        ("node3", None, "/root/torch/bin/python", "/shared/proj"),
    ]
    text = (project / "hosts.yaml").read_text()
    assert "  # 2 x " in text
    assert "  # It did not answer: unreachable (connect): " in text


def test_what_is_not_found_is_asked_for(make_sandbox: MakeSandbox, project: Path) -> None:
    box = make_sandbox(nodes=2)
    done = clusterctl(box, project, "init", "node1", "node2")
    assert done.returncode == 0
    missing = (
        "No interpreter with torch was found: write python: /PATH/bin/python."
        " If there is none yet, clusterctl setup makes it at that path."
    )
    assert f"warning: node[1-2]: {missing}\n" in done.stderr
    assert f"  # {missing}\n" in (project / "hosts.yaml").read_text()


def test_unknown_host_keys_are_recorded_if_a_person_agrees(
    make_sandbox: MakeSandbox, project: Path
) -> None:
    box = make_sandbox(nodes=2)
    (box.layout.ssh / "known_hosts").unlink()
    words = ("init", "node1", "node2")

    done = clusterctl(box, project, *words)
    assert done.returncode == 3
    first, *keys, compare, repeat = done.stderr.splitlines()
    assert first == "error: 2 hosts are not in known_hosts. They showed these keys:"
    assert [key.split(" SHA256:")[0] for key in keys] == [
        "error: node1: ssh-ed25519", "error: node2: ssh-ed25519",
    ]  # fmt: skip
    assert compare.startswith(
        "hint: compare with each host's own, on your provider's page or on its console: "
    )
    assert repeat == (
        "hint: then repeat the command with --accept-new; without a comparison, that trusts the"
        " first connection, as ssh does"
    )
    assert not (project / "hosts.yaml").exists()

    assert at_terminal(box, project, "n\n", *words)[0] == 3
    assert not (project / "hosts.yaml").exists()
    code, shown = at_terminal(box, project, "y\n", *words)
    assert code == 0, shown
    assert [key.removeprefix("error: ") in shown for key in keys] == [True, True]
    assert clusterctl(box, project, "check", "--only", "ssh").returncode == 0

    # The recorded key of the first host is now the second one's: no flag accepts that.
    (known,) = box.layout.root.glob("**/proj/known_hosts")
    first_line, second_line = sorted(known.read_text().splitlines())
    other = second_line.partition(" ")[2]
    known.write_text(f"{first_line.partition(' ')[0]} {other}\n{second_line}\n")
    again = ("init", "--force", "--accept-new", "node1", "node2")
    refused = clusterctl(box, project, *again)
    assert refused.returncode == 3
    (hint,) = re.findall("^hint: (.*)", refused.stderr, re.MULTILINE)
    assert "--accept-new" not in hint
    box.run(shlex.split(hint[hint.index("ssh-keygen") :]), cwd=project, check=True)
    assert clusterctl(box, project, *again).returncode == 0


def at_terminal(box: Sandbox, project: Path, typed: str, *words: str) -> tuple[int, str]:
    """Run clusterctl at a terminal; return its exit code and what it showed."""
    ours, theirs = pty.openpty()
    argv = ["env", "-u", "CLUSTERCTL_INVENTORY", sys.executable, "-m", "clusterctl", *words]
    running = subprocess.Popen(
        box.command(argv, cwd=project),
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=box.environment(),
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return running.wait(SECONDS), shown.decode()


def test_a_file_that_is_there_costs_no_connection(project: Path, tmp_path: Path) -> None:
    (project / "hosts.yaml").write_text("mine")
    argv = [sys.executable, "-m", "clusterctl", "init", "-i", "hosts.yaml", "203.0.113.1"]
    environ = {**os.environ, "CLUSTERCTL_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        argv, cwd=project, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: hosts.yaml: expected no file yet, found one\nhint: overwrite it: clusterctl init -i"
        " hosts.yaml 203.0.113.1 --force\n"
    )
    assert (project / "hosts.yaml").read_text() == "mine"


def test_an_ordinary_user_behind_a_jump_host(make_sandbox: MakeSandbox, project: Path) -> None:
    box = make_sandbox(nodes=2, jumps=1, shells=("bash+noise", "dash"))
    for host in box.hosts:
        environment(box.folder(host.name) / "home/ada/torch")
    (box.layout.ssh / "known_hosts").unlink()
    words = ("init", "ada@node1", "ada@node2")

    refused = clusterctl(box, project, *words)
    assert refused.returncode == 3
    assert refused.stderr.startswith("error: node[1-2]: hostkey (jump): jump host gate1: ")
    assert "then repeat the command with --accept-new" in refused.stderr
    assert not (project / "hosts.yaml").exists()
    done = clusterctl(box, project, *words, "--accept-new")
    assert done.returncode == 0, done.stderr
    cluster = load(project / "hosts.yaml")
    assert [(node.ssh.user, node.python) for node in cluster.nodes] == [
        ("ada", "/home/ada/torch/bin/python")
    ] * 2


def test_nobody_answers(project: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "clusterctl", "init", "-i", "new.yaml"]
    argv += ["127.0.0.1:1", "nowhere.invalid", "--json"]
    environ = {**os.environ, "CLUSTERCTL_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        argv, cwd=project, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 3
    first, hint, second, _, *end = done.stderr.splitlines()
    assert first.startswith("warning: 127.0.0.1: refused (connect): ")
    assert second.startswith("warning: nowhere.invalid: unreachable (resolve): ")
    assert hint.startswith("hint: ")
    document = json.loads(done.stdout)
    validate("init", document)
    assert [one["nodes"] for one in document["failed"]] == ["127.0.0.1", "nowhere.invalid"]
    assert end == ["wrote new.yaml", "hint: clusterctl check -i new.yaml"]
    assert [node.host for node in load(project / "new.yaml").nodes] == [
        "127.0.0.1", "nowhere.invalid",
    ]  # fmt: skip


def test_this_machines_own_environment_is_found(project: Path, tmp_path: Path) -> None:
    environment(tmp_path / "active")
    argv = [sys.executable, "-m", "clusterctl", "init", "-i", "hosts.yaml"]
    changed = {"HOME": str(tmp_path), "VIRTUAL_ENV": str(tmp_path / "active")}
    done = subprocess.run(
        argv,
        cwd=project,
        env={**os.environ, **changed, "CLUSTERCTL_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()[:2]) == (
        0,
        ["wrote hosts.yaml", "hint: clusterctl check"],
    )
    (node,) = load(project / "hosts.yaml").nodes
    python = f"{tmp_path}/active/bin/python"
    assert (node.local, node.python, node.workdir) == (True, python, str(project))
