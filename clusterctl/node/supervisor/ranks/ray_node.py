"""The launcher `ray` on one node: starts Ray, and on the master the driver once all have joined.

    python3 -X utf8 -I -S AGENT clusterctl.node.supervisor.ranks.ray_node:main FOLDER

It is a child of the supervisor and exits when Ray ends here, or with the driver's exit code once
that has ended. Whatever it leaves running is the supervisor's to end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import List, Optional

from clusterctl.node.address_family import address_family
from clusterctl.node.file_io import list_folder, read_end, read_json
from clusterctl.node.run.files import ray_folder
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_paths import RANK_LOG, NodePaths
from clusterctl.node.run.processes.environ_bytes import Environment, original_environment
from clusterctl.node.supervisor.ranks.spawn import shim_argv

CLIENT_PORT = "--ray-client-server-port"
POLL_SECONDS = 0.2
CONNECT_SECONDS = 5.0
END_SECONDS = 10.0
"""How long Ray may take to end by itself; on an idle machine it takes two seconds."""
UNEXPECTED = b"Some Ray subprocesses exited unexpectedly:"
LOG_TAIL, LINE_LIMIT = 65536, 500
DRIVER_LOG = "python-core-driver-"
UNUSED_SECONDS = 120.0
"""How long a driver may load before it connects."""
STARTS = 5
GAVE_UP = (b"node timed out during startup", b"No node info found for head node")
"""What Ray says where a busy machine needs longer than Ray waits, with no option to wait longer."""

GATHER = """
import json, os, sys, time
import ray
address, file, *names = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
asked = time.monotonic()
while True:
    nodes = {node["NodeName"]: node for node in ray.nodes() if node["Alive"]}
    missing = [name for name in names if name not in nodes]
    if not missing:
        break
    if time.monotonic() > asked:
        print("clusterctl: not yet in the Ray cluster: " + ", ".join(missing), flush=True)
        asked += 10
    time.sleep(0.2)
found = [
    {"node": name, "address": nodes[name]["NodeManagerAddress"],
     "cpus": nodes[name]["Resources"].get("CPU", 0), "gpus": nodes[name]["Resources"].get("GPU", 0)}
    for name in names
]
with open(os.open(file + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as new:
    json.dump({"address": address, "version": ray.__version__, "nodes": found}, new)
os.rename(file + ".new", file)
"""
"""Waits in the job's interpreter for all nodes, and writes them down with their resources."""


def main(folder: str) -> int:
    """Run Ray on this node until it is no longer needed."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    job: NodeJob = read_json(folder + "/job.json")  # type: ignore[assignment]
    node = RayNode(NodePaths(folder), job, original_environment())
    try:
        return node.lead() if job["node_rank"] == 0 else node.serve()
    finally:
        node.end()


class RayNode:
    """Ray on one node, and on the master the driver."""

    def __init__(self, paths: NodePaths, job: NodeJob, environment: Environment) -> None:
        self._paths, self._job, self._environment = paths, job, environment
        self._head = (job["master"]["address"], job["master"]["port"])
        self._children: List[subprocess.Popen[bytes]] = []
        self._outlives: Optional[subprocess.Popen[bytes]] = None
        self._starts = 0

    def serve(self) -> int:
        """Be one of the driver's nodes until Ray ends here."""
        folder = self._make_folder()
        while True:
            while not self._head_listens():
                time.sleep(POLL_SECONDS)
            ray = self._start_ray(folder)
            ray.wait()
            if not self._may_start_again():
                return self._report_end(ray)

    def lead(self) -> int:
        """Be the head, run the driver, and return its exit code."""
        folder = self._make_folder()
        while True:
            ray = self._start_ray(folder)
            gathered = self._gather(ray)
            if gathered is not None:
                break
            if not self._may_start_again():
                return self._report_end(ray)
        if gathered:
            say("the driver was not started: Ray's nodes could not be listed")
            return gathered
        return self._run_driver(ray)

    def _run_driver(self, ray: subprocess.Popen[bytes]) -> int:
        driver = self._start(
            [
                *shim_argv(self._paths, self._job, RANK_LOG % 0),
                *self._job["wrap"],
                *self._job["argv"],
            ]
        )
        late = threading.Timer(
            UNUSED_SECONDS, self._report_unused, ["has not connected", "so far it runs"]
        )
        late.daemon = True
        late.start()
        code = self._wait_for(driver, ray)
        late.cancel()
        if code == 0:
            self._report_unused("never connected", "it ran")
        if code is None:
            # The supervisor ends it, after this process: it reports the first end as the cause.
            self._outlives = driver
            return self._report_end(ray)
        if code:  # in torchrun's words, where the supervisor looks for an end that it missed
            say("the driver failed (exitcode: %d) local_rank: 0 (pid: %d)" % (code, driver.pid))
        return code if code >= 0 else 128 - code

    def _make_folder(self) -> str:
        """Make the folder of Ray's files; where it cannot be, one line tells why, and that ends."""
        try:
            return ray_folder.make(self._paths.folder)
        except OSError as error:
            say("Ray's folder cannot be made: %s" % error)
            sys.exit(1)

    def _report_unused(self, what: str, where: str) -> None:
        """Say that the driver does without the Ray of this run, if each driver has a log there."""
        logs = os.path.join(self._paths.folder, "ray", "session_latest", "logs")
        drivers = sum(name.startswith(DRIVER_LOG) for name in list_folder(logs))
        if self._job["workers"] and drivers == 1:  # the one that waited for the nodes
            node = self._job["master"]["node"]
            say(
                "the driver %s to this run's Ray: %s on %s alone; it must call ray.init(),"
                ' without address="local"' % (what, where, node)
            )

    def end(self) -> None:
        """End what runs, the driver before the Ray that it uses."""
        for child in reversed(self._children):
            if child is not self._outlives:
                end_child(child)

    def _gather(self, ray: subprocess.Popen[bytes]) -> Optional[int]:
        """Wait for all nodes; return the exit code of who did; None: Ray ended before that."""
        while not self._head_listens():
            if ray.poll() is not None:
                return None
            time.sleep(POLL_SECONDS)
        names = [self._job["master"]["node"], *self._job["workers"]]
        address = os.fsdecode(self._environment[b"RAY_ADDRESS"])
        words = [self._job["launcher_argv"][0], "-c", GATHER, address, self._paths.ray, *names]
        gathering = self._start(words)
        code = self._wait_for(gathering, ray)
        if code is None:
            end_child(gathering)
        return code

    def _may_start_again(self) -> bool:
        """Tell whether the Ray that ended gave up while it started; no other node needs it yet.

        A worker's Ray starts once the head's is in its own list of nodes, so a head that gave up
        leaves none: theirs have given up too, or wait.
        """
        log = read_end(self._start_log, LOG_TAIL)
        again = self._starts < STARTS and any(words in log for words in GAVE_UP)
        if again:
            say("Ray gave up before it had started here; it is started again")
        return again

    def _start_ray(self, folder: str) -> subprocess.Popen[bytes]:
        self._starts += 1
        argv = [*self._job["launcher_argv"], "--temp-dir=" + folder]
        if self._has_client() and not any(word.startswith(CLIENT_PORT) for word in argv):
            argv.append("%s=%d" % (CLIENT_PORT, self._free_port()))
        # Not into the launcher's log: it says how to end all Ray processes of the machine.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(self._start_log, flags, 0o600), "wb") as log:
            return self._start(argv, log.fileno())

    def _has_client(self) -> bool:
        """Tell whether Ray has its client's server, which needs grpcio: `ray` alone lacks it."""
        argv = [os.fsencode(self._job["launcher_argv"][0]), b"-c", b"import grpc"]
        done = subprocess.run(argv, env=self._environment, stderr=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    @property
    def _start_log(self) -> str:
        return os.path.join(self._paths.folder, "ray", "start.log")

    def _free_port(self) -> int:
        """Return a port that is free now: Ray refuses 0, and the usual one may be another Ray's."""
        address = self._job["address"]
        with socket.socket(address_family(address), socket.SOCK_STREAM) as listening:
            listening.bind((address, 0))
            port: int = listening.getsockname()[1]
        return port

    def _start(self, words: List[str], output: Optional[int] = None) -> subprocess.Popen[bytes]:
        argv = [os.fsencode(word) for word in words]
        child = subprocess.Popen(argv, env=self._environment, stdout=output, stderr=output)
        self._children.append(child)
        return self._children[-1]

    def _wait_for(
        self, child: subprocess.Popen[bytes], ray: subprocess.Popen[bytes]
    ) -> Optional[int]:
        """Return a child's exit code; None: Ray ended before it."""
        while child.poll() is None:
            if ray.poll() is not None:
                return None
            # Blocks until a child has ended, and leaves it to `poll`.
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        return child.returncode

    def _head_listens(self) -> bool:
        with socket.socket(address_family(self._head[0]), socket.SOCK_STREAM) as connection:
            connection.settimeout(CONNECT_SECONDS)
            try:
                connection.connect(self._head)
            except OSError:
                return False
        return True

    def _report_end(self, ray: subprocess.Popen[bytes]) -> int:
        """Say in the launcher's log how Ray ended, and return an exit code that is not 0."""
        log = read_end(self._start_log, LOG_TAIL)
        os.write(1, log)
        _, found, words = log.rpartition(UNEXPECTED)
        # Else it did not start, and its last line tells why, as of an option that it lacks.
        line = words.strip().split(b"\n")[0] if found else log.rstrip().rpartition(b"\n")[2]
        which = line.decode("utf-8", "replace").rpartition(" -- ")[2].strip()[:LINE_LIMIT]
        say("Ray ended on this node%s" % (": " + which if which else ""))
        return max(ray.returncode, 0) or 1


def end_child(child: subprocess.Popen[bytes]) -> None:
    """End a child, if it has not ended; one that takes long is killed."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()


def say(words: str) -> None:
    """Write a line into the launcher's log."""
    os.write(1, ("clusterctl: %s\n" % words).encode("utf-8", "backslashreplace"))
