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
CLIENT = Path(__file__).parent / "flooded.py"
COMMANDS = {
    "stdout": ["exec", "--", "true"],
    "stderr": ["exec", "--", "true"],
    "packet": ["exec", "--", "true"],
    "output": ["exec", "--timeout", "300", "--", "true"],
    "facts": ["check", "--only", "ssh"],
    "collect": ["logs", "--collect", "kept", RUN],
    "pieces": ["logs", RUN],
    "rsync": ["rsync"],
    "banner": ["exec", "--", "true"],
    "welcome": ["exec", "--", "true"],
    "ignored": ["exec", "--", "true"],
    "debug": ["exec", "--", "true"],
    "noise": ["exec", "--", "true"],
    "endless": ["runs"],
    "deep": ["runs"],
    "too_many_values": ["runs"],
    "values": ["runs"],
    "names": ["runs"],
    "lines": ["logs", "--raw", RUN],
    "events": ["logs", RUN],
    "large_events": ["logs", RUN],
    "manifest": ["manifest"],
    "follow": ["logs", "-f", RUN],
    "launch": ["launch", "--no-check", "--no-sync", "--force"],
    "ended": ["ended"],
}
ENDS_ON = {
    "stderr": "ignored the window",
    "packet": "announced a packet of",
    "pieces": "pieces",
    "rsync": "bytes of errors came",
    "ended": "no one waits for",
}
"""What the error of a flood that is cut off says; the others end with it or by their limits."""
START_SECONDS = 2.0
"""To import, log in and show; more under load."""
SECONDS = {"follow": 20, "launch": 20}
"""Of 100 MB: each line is looked at, folded and shown; of the others, none or few are."""
LARGE = {"follow": 200, "launch": 200}
"""MB of the large floods that take too long; the others have 1000."""

SLOW = {
    "welcome", "ignored", "debug", "values", "names", "lines", "manifest",
    "large_events", "follow", "launch",
}  # fmt: skip
"""Floods that only time ends, or that are cut off late."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("flood", "size"),
    [
        pytest.param(flood, size * MB, id=f"{flood}-{size}", marks=pytest.mark.soak if soak else ())
        for flood in COMMANDS
        for size, soak in ((64, flood in SLOW), (LARGE.get(flood, 1000), True))
    ],
)
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
        "nodes": [{"host": "127.0.0.1", "address": "127.0.0.1", "gpus": 0}],
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
                [sys.executable, str(CLIENT), str(told), *COMMANDS[flood]],
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
    assert done.returncode in ({0} if flood == "follow" else {1, 3}), done.stderr[-2000:]
    assert "127.0.0.1" in done.stderr or flood == "facts"
    assert ENDS_ON.get(flood, "") in done.stderr
    if flood == "collect":
        assert (tmp_path / "kept/127.0.0.1/ranks/0.log").stat().st_size >= size
    assert took["kib"] * 1024 < 200 * MB
    assert took["seconds"] < START_SECONDS + SECONDS.get(flood, 1) * size / (100 * MB)
