"""How each fault of a schedule is done for real."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.chaos.schedule import AWAY, PAUSE, SHORT_CUT, SILENCE, Fault, Kind
from tests.chaos.stage import CHECKPOINT, CODE, Seen, Stage, Verb

SSHD_AWAY = 1.5
"""Seconds until a killed sshd is started again, as systemd does."""
DISK = "4m"
STATE = "/var/tmp/clusterctl-0"
FILLER = f"{STATE}/filler"
CHECKPOINTS = "/workspace/checkpoints"
"""Of a run that has them on each node."""

_CUT = """
table inet {name} {{
 chain input {{ type filter hook input priority 0; iif != "lo" ip saddr != {controller} drop; }}
 chain output {{ type filter hook output priority 0; oif != "lo" ip daddr != {controller} drop; }}
}}
"""
"""The network between hosts; the controller's way to them stays."""


@dataclass(slots=True, kw_only=True)
class Target:
    """The run that the faults are for."""

    stage: Stage
    launch: Verb
    checkpoints: str = ""
    """Where the nodes see them."""
    stops: list[Verb] = field(default_factory=list)
    resumes: list[Verb] = field(default_factory=list)
    _run: str = ""

    @property
    def run(self) -> str:
        """Its name; empty until it is planned."""
        if not self._run:
            self._run = str((self.launch.first("plan") or {}).get("run", ""))
        return self._run


def do(target: Target, fault: Fault) -> bool:
    """Do it; False: its victim was not there any more."""
    return _FAULTS[fault.kind](target, target.stage.nodes[fault.node])


def prepare(stage: Stage, fault: Fault) -> None:
    """Do what must have been done before the run."""
    if fault.kind == "disk":
        node = stage.nodes[fault.node]
        script = 'mkdir -m 700 -p "$1" && mount -t tmpfs -o size="$2",mode=700 chaos "$1"'
        _on(stage, node, "sh", "-c", script, "disk", STATE, DISK)


def heal(stage: Stage) -> None:
    """Undo all faults: every host is up, and reaches every other."""
    stage.finish_what_is_due()
    stage.box.heal()
    for node in stage.nodes:
        for name in ("chaos_short", "chaos_long"):
            _nft(stage, node, f"table inet {name}\ndelete table inet {name}\n")
        _on(stage, node, "rm", "-f", FILLER)


def clear(stage: Stage) -> None:
    """Take away what `prepare` made; no run is left."""
    for node in stage.nodes:
        for folder in (STATE, CHECKPOINTS):
            _unmount(stage, node, folder)


def _unmount(stage: Stage, node: str, folder: str) -> bool:
    script = 'grep -q " $1 " /proc/mounts && umount --lazy --no-canonicalize "$1"'
    return _on(stage, node, "sh", "-c", script, "unmount", folder)


def _controller(target: Target, _node: str) -> bool:
    return target.launch.kill()


def _signal(
    find: Callable[[Target, str], list[Seen]], number: signal.Signals = signal.SIGKILL
) -> Callable[[Target, str], bool]:
    def send(target: Target, node: str) -> bool:
        found = find(target, node)
        return bool([seen for seen in found if target.stage.signal(node, seen, number)])

    return send


def _keeper(target: Target, node: str, pid: object) -> list[Seen]:
    """Return the process of this pid, if it is the run's guard or supervisor."""
    living = target.stage.of_run(node, target.run)
    return [s for s in living if s.pid == pid and "clusterctl.node.supervisor.guard" in s.argv]


def _guard(target: Target, node: str) -> list[Seen]:
    guard = target.stage.account(node, target.run).get("guard", [None])
    return _keeper(target, node, guard[0])


def _supervisor(target: Target, node: str) -> list[Seen]:
    return _keeper(target, node, target.stage.account(node, target.run).get("pid"))


def _rank(target: Target, node: str) -> list[Seen]:
    ranks = target.stage.account(node, target.run).get("ranks", [])
    pids = {rank["pid"] for rank in ranks if rank["state"] == "running"}
    return [s for s in target.stage.of_run(node, target.run) if s.pid in pids][-1:]


def _agent(target: Target, node: str) -> list[Seen]:
    living = target.stage.of_run(node, target.run)
    return [seen for seen in living if " torch.distributed.run " in seen.argv][:1]


def _pause(target: Target, node: str) -> bool:
    found = _supervisor(target, node)
    for seen in found:
        target.stage.signal(node, seen, signal.SIGSTOP)
        target.stage.after(PAUSE, partial(target.stage.signal, node, seen, signal.SIGCONT))
    return bool(found)


def _cut(seconds: float) -> Callable[[Target, str], bool]:
    def cut(target: Target, node: str) -> bool:
        if not _cut_as(target, node, "chaos_short"):
            return False
        whole = "table inet chaos_short\ndelete table inet chaos_short\n"
        target.stage.after(seconds, lambda: _nft(target.stage, node, whole))
        return True

    return cut


def _cut_off(target: Target, node: str) -> bool:
    return _cut_as(target, node, "chaos_long")


def _cut_as(target: Target, node: str, name: str) -> bool:
    return _nft(target.stage, node, _CUT.format(name=name, controller="10.77.0.1"))


def _sessions(target: Target, node: str) -> bool:
    found = [
        s
        for s in target.stage.processes(node)
        if s.argv.startswith("sshd") and " -f " not in s.argv
    ]
    return bool([seen for seen in found if target.stage.signal(node, seen, signal.SIGKILL)])


def _sshd(target: Target, node: str) -> bool:
    if target.stage.first(node) is None:
        return False
    target.stage.box.fault(node, "sshd-killed")
    host = target.stage.box.host(node)

    def restart() -> None:
        if target.stage.first(node) is not None:
            target.stage.box.backend.listen(host)

    target.stage.after(SSHD_AWAY, restart)
    return True


def _power(target: Target, node: str) -> bool:
    if target.stage.first(node) is None:
        return False
    target.stage.box.fault(node, "killed")
    return True


def _disk(target: Target, node: str) -> bool:
    script = 'head -c 100M /dev/zero > "$1"; test -s "$1"'
    return _on(target.stage, node, "sh", "-c", script, "fill", FILLER)


def _mount(target: Target, node: str) -> bool:
    if not _mount_off(target, node):
        return False
    target.stage.after(AWAY, lambda: _unmount(target.stage, node, target.checkpoints))
    return True


def _mount_off(target: Target, node: str) -> bool:
    """Mount what is dead: all access fails as it does after the end of a FUSE's program."""
    if target.stage.first(node) is None:
        return False
    target.stage.box.fault(node, "hung-mount", target.checkpoints)
    hung = [s for s in target.stage.processes(node) if "hung-mount" in s.argv]
    return bool([s for s in hung if target.stage.signal(node, s, signal.SIGKILL)])


def _fill(target: Target, node: str) -> bool:
    script = 'head -c 1G /dev/zero > "$1/filler"; test -s "$1/filler"'
    return _on(target.stage, node, "sh", "-c", script, "fill", target.checkpoints)


def _full(target: Target, node: str) -> bool:
    path = f"{target.checkpoints}/filler"
    target.stage.after(AWAY, lambda: _on(target.stage, node, "rm", "-f", path))
    return _fill(target, node)


def _full_off(target: Target, node: str) -> bool:
    """Fill a disk for good; between two attempts there is no rank to kill, and none begins."""
    filled = _fill(target, node)
    _signal(_rank)(target, node)
    return filled


def _stop(target: Target, _node: str) -> bool:
    if not target.run:
        return False
    target.stops.append(target.stage.start("stop", "stop", target.run))
    return True


def _stops(target: Target, node: str) -> bool:
    return all(_stop(target, node) for _ in range(2))


def _resume(target: Target, _node: str) -> bool:
    if not target.run:
        return False
    target.resumes.append(resume(target.stage, target.run))
    return True


def resume(stage: Stage, run: str) -> Verb:
    """Start a resume of a run."""
    words = ("--json", "--no-check", "--no-sync", "--checkpoint", f"{CODE}/{CHECKPOINT}")
    return stage.start("resume", "resume", run, *words)


_FAULTS: dict[Kind, Callable[[Target, str], bool]] = {
    "controller": _controller,
    "guard": _signal(_guard),
    "pause": _pause,
    "cut": _cut(SHORT_CUT),
    "sessions": _sessions,
    "sshd": _sshd,
    "resume": _resume,
    "rank": _signal(_rank),
    "agent": _signal(_agent),
    "supervisor": _signal(_supervisor),
    "cut-off": _cut_off,
    "power": _power,
    "disk": _disk,
    "stop": _stop,
    "stops": _stops,
    "hang": _signal(_rank, signal.SIGSTOP),
    "silence": _cut(SILENCE),
    "mount": _mount,
    "mount-off": _mount_off,
    "full": _full,
    "full-off": _full_off,
}


def _nft(stage: Stage, node: str, text: str) -> bool:
    return _on(stage, node, "nft", "-f", "-", text=text)


def _on(stage: Stage, node: str, *argv: str, text: str = "") -> bool:
    """Run something on a host; False: it failed, or the host is off."""
    if stage.first(node) is None:
        return False
    done: subprocess.CompletedProcess[str] = stage.box.on(node, argv, input=text)
    return done.returncode == 0
