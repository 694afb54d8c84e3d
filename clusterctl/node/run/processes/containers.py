"""Containers of a run: a daemon or a monitor keeps them when the command that started them ends.

They are found by the labels that the run's plan gives them, through the program that started them.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, NamedTuple

from clusterctl.node.agent.child_tasks import Child, gather, run_program
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.run_paths import NodePaths

CLIENTS = frozenset(("docker", "nerdctl", "podman"))
LABELS = ("clusterctl.run=%s", "clusterctl.node=%s")

ANSWER_SECONDS = 10.0
REMOVE_SECONDS = 20.0
"""A daemon waits for the kernel to end a container's processes and to unmount its files."""
POLL_SECONDS = 0.1


class Left(NamedTuple):
    """What is left of a run's containers."""

    names: List[str]
    problem: str
    """Why the list is incomplete; empty: it is complete."""


def fill_in(words: List[str], workdir: str) -> List[str]:
    """Return a container's command with what only the node knows."""
    known = {
        "{workdir}": workdir,
        "{home}": os.path.expanduser("~"),
        "{uid}": str(os.getuid()),
        "{gid}": str(os.getgid()),
    }

    def fill(word: str) -> str:
        for name, value in known.items():
            word = word.replace(name, value)
        return word

    return [fill(word) for word in words]


def started_by_client(job: Mapping[str, Any]) -> bool:
    """Tell whether a run's processes are in containers that outlive their client."""
    return any(os.path.basename(word) in CLIENTS for word in (job.get("container") or [])[:1])


def remove_all(job: Mapping[str, Any]) -> Left:
    """End what is left of a run's containers on this node, and check until none is left."""
    if not started_by_client(job):
        return Left([], "")
    until = time.monotonic() + REMOVE_SECONDS
    while True:
        left = find(job)
        if left.problem or not left.names or time.monotonic() > until:
            return left
        _ask(job, ["rm", "--force", *left.names])
        time.sleep(POLL_SECONDS)


def remove_and_describe(job: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """End what is left of a run's containers, and return what could not be ended or checked."""
    left = remove_all(job)
    why = "a container of the run; not removed within %d s" % REMOVE_SECONDS
    found = [{"pid": 0, "cmd": "container " + name[:12], "why": why} for name in left.names]
    if left.problem:
        found.append({"pid": 0, "cmd": "containers of the run", "why": left.problem})
    return found


def find(job: Mapping[str, Any]) -> Left:
    """Return the ids of a run's containers on this node, those that have ended too."""
    filters = []
    for label, value in zip(LABELS, (job["run"], job["node"])):
        filters += ["--filter", "label=" + label % value]
    answer = _ask(job, ["ps", "--all", "--quiet", "--no-trunc", *filters])
    if answer.state == "ok" and answer.exit_code == 0:
        return Left(answer.output.decode("ascii", "replace").split(), "")
    words = answer.stderr.decode("utf-8", "replace").strip() or "no answer (%s)" % answer.state
    return Left([], "%s: %s" % (job["container"][0], words))


def _ask(job: Mapping[str, Any], words: List[str]) -> Child:
    """Call the program that started the containers, with the job's DOCKER_HOST and the like."""

    def environment() -> Dict[bytes, bytes]:
        asked = {os.fsencode(name): os.fsencode(value) for name, value, _ in job["env"]}
        return {**os.environb, **asked}

    argv = [job["container"][0], *words]
    answer = run_program("containers", argv, ANSWER_SECONDS, environment=environment)
    gather([answer])
    return answer


def main(folder: str) -> int:
    """Remove a run's containers on this node, for its supervisor, which must not wait for it."""
    left = remove_all(read_json(NodePaths(folder).job))
    if left.problem:
        os.write(2, b"clusterctl: containers may be left: %s\n" % os.fsencode(left.problem))
    return 1 if left.problem or left.names else 0
