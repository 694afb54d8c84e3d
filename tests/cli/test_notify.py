"""A run that restarts, then fails, tells a webhook; one whose time is over is stopped."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.runs import Project

pytestmark = pytest.mark.netns

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[1], "ab") as file:
            file.write(body + b"\\n")
        self.send_response(200 if "SECRET" in self.path else 404)
        self.end_headers()
        self.wfile.write(b"ok")
server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
FAILS_TWICE = """
import os, signal, time
again = os.path.exists("again-" + os.environ["RANK"])
open("again-" + os.environ["RANK"], "w").close()
if os.environ["RANK"] == "1":
    time.sleep(3)
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)
    import no_such_module_here
time.sleep(600)
"""
SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
time.sleep(600)
"""


@pytest.fixture
def server(project: Project) -> Iterator[tuple[str, Path]]:
    """Serve on the controller's side; yield the URL, as the hosts reach it, and what it got."""
    got = project.folder.parent / "got"
    process = subprocess.Popen(
        project.sandbox.command([sys.executable, "-c", SERVER, str(got)]),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    network = ipaddress.ip_network(f"{project.sandbox.hosts[0].address}/24", strict=False)
    yield f"http://{network[1]}:{port}/T0SECRET", got
    process.kill()
    with process:
        pass


def messages(got: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in got.read_text().splitlines()] if got.exists() else []


def write_job(project: Project, text: str, **job: Any) -> None:
    (project.folder / "job.py").write_text(text)
    document = yaml.safe_load(project.inventory.read_text())
    common = {"launcher": "direct", "command": ["job.py"]}
    project.inventory.write_text(yaml.safe_dump(document | {"job": {**common, **job}}))


def test_a_restart_and_the_failure_for_good_reach_a_webhook(
    project: Project, server: tuple[str, Path]
) -> None:
    url, got = server
    receiver = {"on": ["restarted", "failed"], "webhook_from": "HOOK"}
    write_job(project, FAILS_TWICE, notify=[receiver], restart={"max": 2})
    words = ("launch", "--no-check", "--nodes", "node1,node2")
    refused = project.run(*words)
    assert refused.returncode == 2
    assert "webhook_from: expected HOOK in this shell's environment, found none" in refused.stderr

    wrong = project.run("notify", "--test", env={"HOOK": url.replace("SECRET", "OTHER")})
    assert (wrong.returncode, wrong.stdout) == (1, "webhook HOOK: failed: HTTP 404 Not Found: ok\n")
    tested = project.run("notify", "--test", env={"HOOK": url})
    assert (tested.returncode, tested.stdout) == (0, "webhook HOOK: ok: HTTP 200 OK: ok\n")
    assert [one["event"] for one in messages(got)] == ["test", "test"]

    launched = project.run(*words, env={"HOOK": url})
    assert launched.returncode == 1, launched.stderr
    *_, again, failed = messages(got)
    assert (again["event"], again["attempt"]) == ("restarted", 2)
    assert (failed["event"], failed["attempt"], failed["state"]) == ("failed", 2, "failed")
    cause = failed["cause"]
    assert (cause["node"], cause["rank"], cause["exit_code"]) == ("node2", 1, 1)
    assert cause["line"] == "ModuleNotFoundError: No module named 'no_such_module_here'"
    assert failed["next"] == f"clusterctl status {failed['run']}"
    status = project.status()
    assert (status["state"], status["notify_problem"]) == ("failed", None)
    kept = [*project.state.rglob("*"), *project.sandbox.shared.parent.rglob("*.json*")]
    assert not [one for one in kept if one.is_file() and b"T0SECRET" in one.read_bytes()]
    assert "T0SECRET" not in launched.stdout + launched.stderr


def test_a_run_whose_time_is_over_saves_and_is_stopped(project: Project) -> None:
    write_job(project, SAVES, checkpoints="out")
    words = ("--no-check", "--nodes", "node1,node2", "--max-time", "15s")
    launched = project.run("launch", *words)
    assert launched.returncode == 124, launched.stderr
    assert "[*:0-1] saved" in launched.stdout, "both ranks"
    status = project.status()
    assert (status["state"], status["ended_by"]) == ("stopped", "max-time")
    hint = f"hint: clusterctl resume {status['run']} --checkpoint latest"
    assert hint in launched.stderr
    assert hint in project.run("status").stdout
