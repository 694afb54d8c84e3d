"""Keeps a version for the tests of version skew: its agent, and a run that it started.

    python -m tests.skew.make_fixture COMMIT

The version itself starts a run in a sandbox and stops it. `tests/skew/versions/` then has what its
controller sent and recorded, and what its agent left on the nodes.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from clusterctl.sandbox import sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.sandbox import Sandbox
from tests.skew.earlier import CLUSTER, NODES, STATE, VERSIONS, WORKDIR, inventory, on_node
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]  # of the checkout, whose history has the versions
AGENT = ("clusterctl/node", "clusterctl/wire.py")

_CONTROLLER = """
import json, os, runpy
from clusterctl import wire
encode = wire.Message.encode
def noting(self):
    if self.head.get("op") == "start":
        found = {"head": self.head, "body": self.body.decode()}
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(json.dumps(found) + "\\\\n")
    return encode(self)
wire.Message.encode = noting
runpy.run_module("clusterctl", run_name="__main__")
""".replace("\\\\n", "\\n")
"""The version's own controller; it notes what it sends to start a run."""


def check_out(commit: str, paths: tuple[str, ...], folder: Path) -> None:
    """Put files of a commit into a folder.

    Raises:
        subprocess.CalledProcessError: this checkout does not have the commit.
    """
    archive = ["git", "-C", str(ROOT), "archive", commit, *paths]
    packed = subprocess.run(archive, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")


def make(commit: str) -> Path:
    """Make the fixture of a commit or tag, and return its path."""
    show = ["git", "-C", str(ROOT), "log", "-1", "--format=%cs", commit]
    date = subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip()
    place = VERSIONS / f"{date}-{commit}.tar.xz"
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        source = work / "source"
        check_out(commit, ("clusterctl",), source)
        box = sandbox.up(f"skew-{os.getpid()}", SandboxSpec(nodes=len(NODES)))
        try:
            run = _play(box, source, work)
            with tarfile.open(place, "w:xz", preset=9) as archive:
                for path in AGENT:
                    archive.add(source / path, path, filter=_plain)
                _add(archive, "requests.json", _requests(work / "notes").encode())
                record = (work / "state" / CLUSTER / run / "record.json").read_text()
                for found, written in ((box.layout.root, "/sandbox"), (work, "/home/user")):
                    record = record.replace(str(found), written)
                _add(archive, "record.json", record.encode())
                for node in NODES:
                    folder = f"{STATE}/{run}/{node}"
                    packed = on_node(box, node, ["tar", "-cC", folder, "--exclude=agent.py", "."])
                    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
                        for file in filter(tarfile.TarInfo.isfile, files):
                            data = files.extractfile(file)
                            assert data is not None
                            name = f"nodes/{node}/{run}/{file.name.removeprefix('./')}"
                            _add(archive, name, data.read())
        finally:
            box.down()
    return place


def _play(box: Sandbox, source: Path, work: Path) -> str:
    """Start a run with the version of `source` and stop it; return its id."""
    for node in NODES:
        on_node(box, node, ["mkdir", WORKDIR])
    (work / "hosts.yaml").write_text(inventory(box))
    (work / "project").mkdir()
    (work / "project" / "README").write_text("a job's code\n")
    env = {
        "PYTHONPATH": str(source),
        "CLUSTERCTL_STATE": str(work / "state"),
        "CLUSTERCTL_INVENTORY": str(work / "hosts.yaml"),
        "NOTES": str(work / "notes"),
    }

    def clusterctl(*words: str) -> str:
        argv = [sys.executable, "-c", _CONTROLLER, *words]
        done = box.run(argv, env=env, cwd=work / "project")
        assert done.returncode == 0, done.stderr
        return done.stdout

    run = clusterctl("launch", "--no-check", "--detach").strip()
    wait_until(lambda: clusterctl("logs", "--raw", run).count("up ") == len(NODES))
    clusterctl("stop", run)
    return run


def _requests(notes: Path) -> str:
    found = [json.loads(line) for line in notes.read_text().splitlines()]
    return json.dumps({one["head"]["args"]["job"]["node"]: one for one in found}, indent=1)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Keep sources only, without a trace of the machine."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return None if info.name.endswith((".pyc", "__pycache__")) else info


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(make(each))
