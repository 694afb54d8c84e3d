"""A server that floods takes little of this machine, whatever it floods, in a whole command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from clusterctl.inventory.load import load
from clusterctl.sandbox.loopback import free_port
from clusterctl.transport.ssh.known_hosts import known_name
from clusterctl.verbs.runs.records import Records, RunRecord
from tests.sshd_servers import make_key
from tests.verbs.run_answers import RUN

MB = 1_000_000
SERVER = Path(__file__).parent / "hostile_sshd.py"
CLIENT = """
import json, sys, time
from pathlib import Path
from clusterctl.inventory import build
build.is_here = lambda _host, _own: False
from clusterctl.cli.main import main
began = time.process_time()
if sys.argv[2] == "push":
    from clusterctl.errors import NodeError
    from clusterctl.inventory.load import load
    from clusterctl.sync.rsync import push
    from clusterctl.transport.pool import Pool
    with Pool(load(Path("hosts.yaml"))) as pool:
        try:
            push(pool._connection("127.0.0.1"), source=Path(), paths=[b"train.py"], workdir="/",
                 folder=Path(), temporary="own", alive=lambda _sent: None)
            code = 0
        except NodeError as error:
            print("127.0.0.1", error, file=sys.stderr)
            code = 3
else:
    code = main(sys.argv[2:])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
took = {"seconds": time.process_time() - began, "kib": int(status["VmHWM"].split()[0])}
Path(sys.argv[1]).write_text(json.dumps(took))
sys.exit(code)
"""
"""A command that tells what it took; children, such as rsync, are not counted."""

COMMANDS = {
    "stdout": ["exec", "--", "true"],
    "stderr": ["exec", "--", "true"],
    "packet": ["exec", "--", "true"],
    "output": ["exec", "--timeout", "300", "--", "true"],
    "facts": ["check", "--only", "ssh"],
    "collect": ["logs", "--collect", "kept", RUN],
    "pieces": ["logs", RUN],
    "rsync": ["push"],
}
ENDS_ON = {
    "stderr": "ignored the window",
    "packet": "announced a packet of",
    "pieces": "pieces",
    "rsync": "bytes of errors came",
}
"""What the error of a flood that is cut off says; the others end with it or by their limits."""
START_SECONDS = 2.0
"""To import, log in and show; more under load."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "size", [64 * MB, pytest.param(1000 * MB, marks=pytest.mark.soak)], ids=["64", "1000"]
)
@pytest.mark.parametrize("flood", COMMANDS)
def test_a_flood_takes_little(
    flood: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An address of this machine would be reached without SSH.
    monkeypatch.setattr("clusterctl.inventory.build.is_here", lambda _host, _own: False)
    make_key(tmp_path / "host_key")
    identity = make_key(tmp_path / "id")
    port = free_port()
    state = tmp_path / "state"
    known = state / "lab" / "known_hosts"
    known.parent.mkdir(parents=True)
    kind, key, *_ = (tmp_path / "host_key.pub").read_text().split()
    known.write_text(f"{known_name('127.0.0.1', port)} {kind} {key}\n")
    document = {
        "cluster": "lab",
        "ssh": {"user": "any", "port": port, "identity": str(identity)},
        "workdir": "/nowhere",
        "nodes": [{"host": "127.0.0.1", "address": "127.0.0.1"}],
        "job": {"command": ["true"]},
    }
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(yaml.safe_dump(document))
    (tmp_path / "train.py").touch()
    Records(state).write(RunRecord(run=RUN, began=1.0, cluster=load(inventory)))
    told = tmp_path / "took"
    words = [sys.executable, str(SERVER), str(port), str(tmp_path / "host_key"), flood, str(size)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, str(told), *COMMANDS[flood]],
                cwd=tmp_path,
                env={**os.environ, "CLUSTERCTL_STATE": str(state), "SSH_AUTH_SOCK": ""},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=500,
            )
        finally:
            server.kill()
    assert told.exists(), done.stderr
    took = json.loads(told.read_text())
    print(flood, size // MB, "MB:", took, done.stderr[-300:])
    assert done.returncode in {1, 3}, done.stderr
    assert "127.0.0.1" in done.stderr or flood == "facts"
    assert ENDS_ON.get(flood, "") in done.stderr
    if flood == "collect":
        assert (tmp_path / "kept/127.0.0.1/ranks/0.log").stat().st_size >= size
    assert took["kib"] * 1024 < 200 * MB
    assert took["seconds"] < START_SECONDS + size / (100 * MB)
