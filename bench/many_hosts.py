"""Many hosts through real SSH behind one busy core: every host must answer, and pdsh not be faster.

`python bench/many_hosts.py [HOSTS] [ROUNDS] [VERB ...]`, as root on Linux with pdsh. One sshd with
an address for each host runs in a network namespace of its own and on one core; the client runs in
another namespace and on another core, so no address is its own machine's. Each verb takes turns
with `pdsh -f 32`, sync also with an rsync that pdsh starts for each host. Printed are the hosts
that answered, seconds on the clock, the CPU time of the client (with all that it starts) and of the
hosts, which other programs disturb less, the client's peak memory, and the ratios of both sides.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOSTS = int(sys.argv[1]) if len(sys.argv) > 1 else 256
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 1
VERBS = sys.argv[3:] or ["check", "exec", "sync", "launch"]
ADDRESSES = [f"10.99.{n // 250}.{n % 250 + 1}" for n in range(HOSTS)]
INSIDE = "CLUSTERCTL_BENCH_INSIDE"
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
PR_SET_CHILD_SUBREAPER = 36
SERVER_CORE, CLIENT_CORE = 0, (os.cpu_count() or 1) - 1
FANOUT = os.environ.get("BENCH_FANOUT", "")
"""Passed on as `--fanout`; empty: adaptive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one command took."""

    answered: int
    seconds: float
    cpu: float
    hosts_cpu: float
    peak_mb: float


def main() -> None:
    """Start the hosts and compare."""
    # Compiled modules are kept, as in every installation.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if INSIDE not in os.environ:
        argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        own = {**os.environ, INSIDE: "1"}
        sys.exit(
            subprocess.run([*argv, sys.executable, *sys.argv], env=own, check=False).returncode
        )
    with tempfile.TemporaryDirectory() as name, hosts(Path(name)) as command_env:
        folder = Path(name)
        print(f"{HOSTS} hosts behind one core, {ROUNDS} turn(s)")
        rival: list[Turn] = []
        copying: list[Turn] = []
        ours: dict[str, list[Turn]] = {verb: [] for verb in VERBS}
        for _ in range(ROUNDS):
            rival.append(pdsh(folder, command_env))
            show("pdsh -f 32", rival, rival)
            for verb, turns in ours.items():
                turns.append(clusterctl(verb, folder, command_env))
                show(verb, turns, rival)
                if verb == "sync":
                    copying.append(pdsh_rsync(folder, command_env))
                    show("pdsh + rsync", copying, rival)


def show(title: str, turns: list[Turn], rival: list[Turn]) -> None:
    """Print the medians of one command so far, and their ratios to pdsh's."""
    seconds, cpu, there, other_seconds, other_cpu, other_there = (
        statistics.median(values)
        for values in (
            [turn.seconds for turn in turns],
            [turn.cpu for turn in turns],
            [turn.hosts_cpu for turn in turns],
            [turn.seconds for turn in rival],
            [turn.cpu for turn in rival],
            [turn.hosts_cpu for turn in rival],
        )
    )
    answered = min(turn.answered for turn in turns)
    peak = max(turn.peak_mb for turn in turns)
    print(
        f"  {title:12} {answered:5} answered {seconds:7.2f} s ({seconds / other_seconds:4.2f})"
        f" {1000 * cpu / HOSTS:6.1f} ms CPU a host ({cpu / other_cpu:4.2f})"
        f" {1000 * there / HOSTS:6.1f} ms there ({there / other_there:4.2f}) peak {peak:4.0f} MB",
        flush=True,
    )


@contextmanager
def hosts(folder: Path) -> Iterator[dict[str, str]]:
    """Start the hosts; yield the environment of commands that reach them."""
    (folder / "home/.ssh").mkdir(parents=True, mode=0o700)
    (folder / "src").mkdir()
    (folder / "src/main.py").write_text("print('hello')\n")
    for key in ("host_key", "home/.ssh/id_ed25519"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
        )
    (folder / "authorized_keys").write_text((folder / "home/.ssh/id_ed25519.pub").read_text())
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known").write_text("".join(f"{one} {host_key}" for one in ADDRESSES))
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"PidFile {folder}/pid\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        "MaxStartups 5000\nSetEnv HOME=/tmp\n"
    )
    # An ssh that pdsh runs takes its home from the user database, not from the environment.
    os.environ["HOME"] = str(folder / "home")
    options = f"-i {folder}/home/.ssh/id_ed25519 -o UserKnownHostsFile={folder}/known"
    nodes = "".join(f"  - {{host: {one}, workdir: {folder}/code/{one}}}\n" for one in ADDRESSES)
    (folder / "hosts.yaml").write_text(
        f"cluster: many\nssh: {{user: root, identity: {folder}/home/.ssh/id_ed25519}}\n"
        "defaults: {gpus: 0}\nsame_machine: allow\n"
        f"nodes:\n{nodes}job: {{command: [main.py]}}\n"
    )
    (folder / "state/many").mkdir(parents=True, mode=0o700)
    (folder / "state/many/known_hosts").write_text((folder / "known").read_text())
    Path("/run/sshd").mkdir(exist_ok=True)
    command = f"taskset -c {SERVER_CORE} {SSHD} -D -e -f {folder}/sshd_config"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", f"echo; read x; exec {command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=adopt_orphans,  # noqa: PLW1509  (no thread runs yet)
        )
    assert server.stdout is not None
    assert server.stdin is not None
    server.stdout.readline()
    for line in (
        "ip link set lo up",
        f"ip link add to-hosts type veth peer name outside netns {server.pid}",
        "ip addr add 10.98.0.1/30 dev to-hosts",
        "ip link set to-hosts up",
        f"nsenter -t {server.pid} -n ip link set lo up",
        f"nsenter -t {server.pid} -n ip addr add 10.98.0.2/30 dev outside",
        f"nsenter -t {server.pid} -n ip link set outside up",
        f"nsenter -t {server.pid} -n ip route add local 10.99.0.0/16 dev lo",
        "ip route add 10.99.0.0/16 via 10.98.0.2",
    ):
        subprocess.run(line.split(), check=True)
    server.stdin.write(b"\n")
    server.stdin.close()
    time.sleep(1)
    try:
        yield {
            **os.environ,
            "BENCH_SSHD": str(server.pid),
            "CLUSTERCTL_STATE": str(folder / "state"),
            "PDSH_SSH_ARGS_APPEND": options,
        }
    finally:
        server.kill()
        server.wait()


def pdsh(folder: Path, env: dict[str, str]) -> Turn:
    """Take its turn."""
    argv = ["pdsh", "-R", "ssh", "-f", "32", "-l", "root", "-w", ",".join(ADDRESSES), "hostname"]
    turn, out, _ = timed(argv, folder, env)
    return Turn(answered=len(out.splitlines()), **turn)


def pdsh_rsync(folder: Path, env: dict[str, str]) -> Turn:
    """Copy the code as `sync` does, by an rsync for each host; the hosts share one disk."""
    copied = folder / "copied"
    argv = ["pdsh", "-R", "exec", "-f", "32", "-w", ",".join(ADDRESSES), "rsync", "-a", "--mkpath"]
    ssh = ["-e", f"ssh {env['PDSH_SSH_ARGS_APPEND']}"]
    argv += [*ssh, f"{folder}/src/", f"root@%h:{copied}/%h/"]
    turn, _, _ = timed(argv, folder, env)
    return Turn(answered=len(list(copied.glob("*/main.py"))), **turn)


def clusterctl(verb: str, folder: Path, env: dict[str, str]) -> Turn:
    """Take the turn of one verb."""
    more = {
        "check": ["--json"],
        "exec": ["--json", "--", "hostname"],
        "sync": ["--json"],
        "launch": ["--dry-run", "--json"],
    }[verb]
    fanout = ["--fanout", FANOUT] if FANOUT else []
    argv = [
        sys.executable,
        "-m",
        "clusterctl",
        verb,
        "-i",
        str(folder / "hosts.yaml"),
        *fanout,
        *more,
    ]
    turn, out, err = timed(argv, folder / "src", {**env, "PYTHONPATH": str(ROOT)})
    keep = os.environ.get("BENCH_KEEP")
    if keep:
        Path(keep, f"{verb}.out").write_text(out)
        Path(keep, f"{verb}.err").write_text(err)
    return Turn(answered=answered(verb, out, err), **turn)


def answered(verb: str, out: str, err: str) -> int:
    """Count the hosts that answered."""
    try:
        # A launch prints a document a line: messages, the check's, then the plan.
        documents = map(json.loads, out.splitlines() if verb == "launch" else [out])
        document = next(one for one in documents if one.get("kind", "check") == "check")
    except (ValueError, StopIteration):
        print(f"  {verb}: no document: {err[-600:]}")
        return 0
    if verb == "exec":
        return sum(node["exit_code"] == 0 for node in document["nodes"])
    if verb == "sync":
        return sum(not node.get("error") for node in document["nodes"])
    findings = document["findings"]
    silent = {
        name
        for finding in findings
        if finding["check"] == "ssh.connect" and finding["status"] not in {"ok", "pass"}
        for name in finding["nodes"]
    }
    return HOSTS - len(silent)


def timed(argv: list[str], cwd: Path, env: dict[str, str]) -> tuple[dict[str, float], str, str]:
    """Run a command on the client's core; return what it took and what it printed."""
    began, used, there = time.monotonic(), os.times(), hosts_cpu(env)
    done = subprocess.run(
        ["taskset", "-c", str(CLIENT_CORE), "/usr/bin/env", "python3", "-c", PEAK, *argv],
        cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True,
        errors="replace",
    )  # fmt: skip
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    err, _, peak = done.stderr.rpartition("peak=")
    took = {"seconds": time.monotonic() - began, "cpu": cpu, "peak_mb": float(peak or 0) / 1024}
    time.sleep(1)
    took["hosts_cpu"] = hosts_cpu(env) - there
    return took, done.stdout, err


def adopt_orphans() -> None:
    """Let sshd reap, and so count, also what outlives its own session's process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hosts_cpu(env: dict[str, str]) -> float:
    """Return the CPU seconds of sshd and of all that ended below it."""
    times = Path("/proc", env["BENCH_SSHD"], "stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


PEAK = """\
import os, resource, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
_, _, used = os.wait4(child.pid, 0)
sys.stderr.write('peak=%d' % used.ru_maxrss)
"""


if __name__ == "__main__":
    main()
