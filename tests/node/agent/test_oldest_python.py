"""A run under the oldest Python that nodes may have, and those between."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from clusterctl.wire import Message, read_message
from tests.installed import LOCATION
from tests.node.conftest import Head, Run
from tests.waiting import wait_until

AGENT = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    "from clusterctl.node.agent.main import serve; serve(b'MARKER')"
)


UNPACKED = Path(__file__).resolve().parents[3] / ".venv/python3.9/usr/bin/python3.9"
"""What `.ci/python39` has fetched."""


def older_pythons() -> list[str]:
    """Return a working interpreter for each version before this one, from 3.9 on."""
    found = []
    for minor in range(9, sys.version_info.minor):
        pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"))
        unpacked = [str(UNPACKED)] if UNPACKED.exists() and minor == 9 else []
        for python in [shutil.which(f"python3.{minor}"), *map(str, pyenv), *unpacked]:
            ask = [python or "false", "-c", "import ssl, ctypes"]
            if subprocess.run(ask, check=False, capture_output=True).returncode == 0:
                found.append(str(python))
                break
    return found


def call(python: str, _n: int, op: str, args: Head, body: bytes = b"") -> list[Message]:
    """Run an operation of the agent under this interpreter."""
    argv = [python, "-X", "utf8", "-I", "-S", "-c", AGENT, str(LOCATION)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as agent:
        assert agent.stdin
        assert agent.stdout
        agent.stdin.write(Message({"op": op, "args": args}, body).encode())
        assert agent.stdout.read(6) == b"MARKER"
        messages = list(iter(partial(read_message, cast("BinaryIO", agent.stdout)), None))
    return [message for message in messages if "beat" not in message.head]


@pytest.mark.skipif(not older_pythons(), reason="no Python before this one is installed")
@pytest.mark.parametrize("python", older_pythons())
def test_a_run_lives_and_ends_under(
    python: str, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "call", lambda _self, *args: call(python, *args))
    run = make_run("import time; print('here'); time.sleep(300)", nodes=2, procs=2).start()
    run.wait_for_log(3, b"here", n=1)
    assert Path(f"/proc/{run.pid_of_supervisor()}/exe").resolve() == Path(python).resolve()

    states = ["running", "running"]
    wait_until(lambda: [run.asked_status(n)["state"] for n in (0, 1)] == states)
    assert run.stop(0)["gone"]
    assert [run.ended(n)["state"] for n in (0, 1)] == ["stopped", "stopped"]
    assert run.tail(1)[-1].head["node"]["end"]["by"] == "stop"
    assert not run.left()
