"""How long it takes to ask many hosts over SSH: ours against pdsh and clush, in one run.

`python bench/check_ssh.py [HOSTS] [ROUNDS]` starts that many sshd servers on loopback, so both
sides pay the same servers on the same cores, and takes turns. Printed are medians and ratios of the
seconds on the clock, and of the processor's: those of the client, the servers and all they start.
"""

from __future__ import annotations

import functools
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench._box import ROOT, argument, cpu_seconds, hosts, in_turns
from clusterctl.facts.parse_facts import read_arguments
from clusterctl.facts.request import FactRequest
from clusterctl.node.agent import loader
from clusterctl.sandbox.sandbox import Sandbox
from clusterctl.wire import Message

HOSTS, ROUNDS = argument(1, 128), argument(2, 3)
NAMES = f"node[1-{HOSTS}]"
SETTLE_SECONDS = 0.5
"""Until the servers have waited for the sessions that just ended."""

OURS = """\
import sys
from pathlib import Path
from clusterctl.facts.parse_facts import read_arguments
from clusterctl.facts.request import FactRequest
from clusterctl.inventory import load
from clusterctl.transport.interface import Request
from clusterctl.transport.pool import Pool

cluster = load(Path(sys.argv[1]))
wanted = FactRequest(python=sys.executable, gpus=0, listeners=False)
request = Request(op="read", args={**read_arguments(wanted), "clock": 0})
with Pool(cluster) as pool:
    replies = list(pool.call({node.name: request for node in cluster.nodes}))
bad = [reply for reply in replies if not reply.ok]
sys.exit(f"{len(bad)} failed: {bad[0]}" if bad else 0)
"""


def main() -> None:
    """Run both rows."""
    missing = [name for name in ("pdsh", "clush") if tool(name) is None]
    if missing:
        sys.exit(f"wanted beside ours: {', '.join(missing)}")
    with hosts(HOSTS, "loopback") as (box, folder):
        stub = write_stub(folder)
        compare(
            box, f"all fast checks, {HOSTS} hosts", check(box), {"pdsh hostname": pdsh("hostname")}
        )
        rivals = {"pdsh": pdsh(stub), "clush": clush(stub)}
        compare(box, f"the same reads, {HOSTS} hosts", ours(box), rivals)


def compare(box: Sandbox, title: str, mine: list[str], rivals: dict[str, list[str]]) -> None:
    """Take turns and print the medians."""
    servers = sshds(box)

    def turn(argv: list[str]) -> tuple[float, float]:
        began, used = time.monotonic(), sum(cpu_seconds(servers))
        run(box, argv)
        clock = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        return clock, sum(cpu_seconds(servers)) - used

    sides = {"clusterctl": mine, **rivals}
    seconds = in_turns(ROUNDS, {n: functools.partial(turn, argv) for n, argv in sides.items()})
    print(title)
    for which, unit in enumerate(("on the clock", "of processor")):
        best = statistics.median(pair[which] for pair in seconds["clusterctl"])
        for name, pairs in seconds.items():
            values = [pair[which] for pair in pairs]
            median = statistics.median(values)
            ratio = "" if name == "clusterctl" else f"   ours / theirs {best / median:.2f}"
            spread = f"({min(values):.2f} to {max(values):.2f})"
            print(f"  {name:14} {median:6.2f} s {unit} {spread}{ratio}")


def sshds(box: Sandbox) -> list[psutil.Process]:
    """Return the hosts' servers; each has waited for every session that it began."""
    root = str(box.layout.root)
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "sshd" and root in " ".join(process.info["cmdline"] or ())
    ]


def run(box: Sandbox, argv: list[str]) -> None:
    done = box.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, errors="replace")
    # A check that finds something on this machine (1) has still looked at every host.
    if done.returncode not in (0, 1):
        sys.exit(f"{argv[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def check(box: Sandbox) -> list[str]:
    return [sys.executable, "-m", "clusterctl", "check", "-i", str(box.inventory), "--json"]


def ours(box: Sandbox) -> list[str]:
    return [sys.executable, "-c", OURS, str(box.inventory)]


def pdsh(command: str) -> list[str]:
    return ["pdsh", "-R", "ssh", "-S", "-f", "32", "-w", NAMES, command]


def clush(command: str) -> list[str]:
    return [str(tool("clush")), "-S", "-f", "64", "-w", NAMES, command]


def tool(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def write_stub(folder: Path) -> str:
    """Write the agent and its request as files: the rivals need not even send them."""
    folder.chmod(0o755)
    program = loader.program().decode("latin-1").partition("module, _, function")[0]
    end = "from clusterctl.node.agent.main import serve\nserve(b'marker\\n')\n"
    (folder / "agent.py").write_text("# coding: latin-1\n" + program + end, encoding="latin-1")
    # No clock: that one is asked from outside, as nobody does for the rivals.
    wanted = FactRequest(python=sys.executable, gpus=0, listeners=False)
    head = {"op": "read", "args": {**read_arguments(wanted), "clock": 0}}
    (folder / "request").write_bytes(Message(head).encode())
    return f"exec /usr/bin/python3 -X utf8 -I -S {folder}/agent.py <{folder}/request"


if __name__ == "__main__":
    main()
