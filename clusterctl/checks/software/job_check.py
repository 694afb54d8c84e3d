"""Whether the code can be synced to each node, and the job's own check passes there."""

import re
import shlex
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, fail, finding, warn
from clusterctl.checks.registry import Check
from clusterctl.checks.software.python import FOUND, TORCH
from clusterctl.checks.storage.disks import SHARED
from clusterctl.checks.wording import last_line
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.make import command_with_python

JOB_CHECK = "job.check"
_SYNC = "clusterctl sync (in the folder with the code) copies the code there"


@Check(
    "node.rsync",
    title="rsync is installed",
    why="`sync` copies the code with it.",
    fix="Install rsync with the package manager of the node.",
    source="https://download.samba.org/pub/rsync/rsync.1",
    required_facts=("rsync",),
    applies=lambda node, cluster: not cluster.node(node.node).local,
)
def rsync(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the other machines; `sync` itself reports a missing rsync on this one."""
    if node.rsync == "" and not cluster.node(node.node).local:
        yield fail(
            node.node,
            "rsync is not installed",
            wanted="rsync",
            found="no such program",
            remedy="sudo apt-get install rsync",
        )


@Check(
    JOB_CHECK,
    title="the job's own check passes",
    why="Only the job itself can check its configuration, its data and its memory.",
    fix="Run the command of `job.check` on the node by hand, in `workdir`.",
    source="docs/reference/inventory.md",
    explained_by=(SHARED, FOUND, TORCH, "python.cuda", "storage.needs", "storage.writable"),
    after_sync=True,
    applies=lambda node, cluster: bool(cluster.job.check) and node.job_check is not None,
)
def job_check(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge by its exit code."""
    result = node.job_check
    if not cluster.job.check or result is None:
        return
    if result.exit_code == 0:
        if result.other_code:
            yield warn(
                node.node,
                "the job's own check passed, but not on the code of this folder",
                wanted="the code that a launch from here brings",
                found="other code",
                remedy=_SYNC,
            )
        return
    ended = result.exit_code is not None
    python = node.python.asked if node.python else "python3"
    there = f"run it on the node: {shlex.join(command_with_python(cluster.job.check, python))}"
    yield finding(
        "fail" if ended else "unknown",
        node.node,
        ("the job's own check fails" if ended else "the job's own check did not finish")
        + (" on other code than that of this folder" if result.other_code else ""),
        wanted="exit code 0",
        found=last_line(result.output) or result.words or f"exit code {result.exit_code}",
        remedy=_SYNC
        if result.other_code or _is_absent(cluster.job.check, result.output)
        else there,
    )


def _is_absent(command: tuple[str, ...], output: str) -> bool:
    """Tell whether Python did not find the command's own module or script."""
    printed = last_line(output)
    if command[0] == "-m" and len(command) > 1:
        module = re.escape(command[1].split(".")[0])
        return re.search(rf"No module named '?{module}\b", printed) is not None
    return "can't open file" in printed and command[0] in printed
