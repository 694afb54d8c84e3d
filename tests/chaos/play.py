"""Plays one schedule on a stage and says which invariants did not hold."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import faults, invariants
from tests.chaos.faults import Target
from tests.chaos.invariants import Done
from tests.chaos.lateness import Meter, slack
from tests.chaos.schedule import LOST_AFTER, NODES, OUTLIVED, Schedule
from tests.chaos.stage import Stage, Verb

if TYPE_CHECKING:
    from tests.chaos.healing import Healing

START = 180.0
"""Seconds that ranks may take to begin; torch is slow to import on a busy machine."""
EARLY_START = 60.0
"""As the launch has it when faults come meanwhile that may end it: who waits in vain waits for
that long."""
ORPHANED = 12.0
"""Seconds after which a start that lost its `launch` gets no further."""
LAST_WAIT = 10.0
"""Seconds that `launch` gives a node that does not answer once all others have ended."""


@dataclass(slots=True)
class Played:
    """What came of a schedule."""

    schedule: Schedule | Healing
    dones: list[Done] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """The invariants that did not hold."""
    run: str = ""
    gone_after: float | None = None
    """Seconds from the first effect of a fault until no process was left."""
    late: float = 0.0
    """Seconds that the machine was late meanwhile."""


def play(stage: Stage, schedule: Schedule) -> Played:
    """Play a schedule to its end; the hosts are whole again afterwards."""
    played = Played(schedule)
    enough = stage.box.shared / "enough"
    enough.unlink(missing_ok=True)
    for fault in schedule.faults:
        faults.prepare(stage, fault)
    target = Target(stage=stage, launch=stage.start("launch", *_launch(schedule)))
    later = schedule.early and _do_faults(target, schedule, played)
    begun = _begun(target, schedule)
    hard = any(map(invariants.is_hard, played.dones))
    if schedule.early and (hard or not begun):
        _judge_start(target, played, enough)
    elif not begun:
        played.wrong.append("launch: the ranks did not begin")
    else:
        if not schedule.early:
            later = _do_faults(target, schedule, played)
            played.wrong += invariants.missed(played.dones)
        _await_end(target, played, enough)
        _judge(target, played)
        if later:
            enough.unlink(missing_ok=True)
            _resume(target, schedule, played, enough)
    played.run = target.run
    judge_remains(stage, played)
    played.late = stage.meter.late
    faults.clear(stage)
    return played


def _launch(schedule: Schedule) -> list[str]:
    words = ["launch", "--json", "--no-check", "--no-sync", "--launcher", schedule.launcher]
    words += ["--lost-after", f"{LOST_AFTER:g}", "--procs-per-node", str(schedule.procs)]
    in_vain = schedule.early and any(fault.kind not in OUTLIVED for fault in schedule.faults)
    words += ["--start-timeout", f"{EARLY_START if in_vain else START:g}"]
    program = ["bash", "job.sh"] if schedule.form == "shell" else ["job.py"]
    return [*words, "--", *program, schedule.form, "/shared/enough"]


def _begun(target: Target, schedule: Schedule) -> bool:
    """Wait until every rank has written; False: they do not, or the start is not answered.

    A node whose answer `launch` has not heard, for its sshd has died, is one that did not start.
    """
    stage, launch = target.stage, target.launch
    world = NODES * schedule.procs

    def begun() -> bool:
        if not target.run or len(stage.witnesses(target.run)) != world:
            return False
        answered = {one["node"] for one in launch.documents() if one["kind"] == "started"}
        return launch.killed or answered == set(stage.nodes)

    stage.wait(lambda: begun() or launch.over(), ORPHANED if launch.killed else START)
    return begun()


def _do_faults(target: Target, schedule: Schedule, played: Played) -> bool:
    """Do the faults; return whether a resume is to follow, once the run is over."""
    stage, later = target.stage, False
    if schedule.early and schedule.faults[0].after:
        stage.wait(lambda: bool(target.run) or target.launch.over(), START)
    stage.meter = Meter()
    for fault in schedule.faults:
        stage.sleep(fault.after)
        if fault.kind == "resume" and any(map(invariants.is_hard, played.dones)):
            later = True
            continue
        began = time.monotonic()
        hit = faults.do(target, fault)
        played.dones.append(Done(fault=fault, began=began, ended=time.monotonic(), hit=hit))
    return later


def _await_end(target: Target, played: Played, enough: Path) -> None:
    """Wait until no process of the run is left, no longer than is documented."""
    stage = target.stage
    hard = any(map(invariants.is_hard, played.dones))
    if not hard:
        stage.finish_what_is_due()
        stage.wait(lambda: all(verb.over() for verb in target.resumes), START)
        enough.touch()
    stage.wait(lambda: all(verb.over() for verb in target.stops), 60, strictly=False)
    _judge_proof(target, played)
    _learn_stops(target, played)
    now = time.monotonic()
    limit = invariants.gone_by(played.dones) if hard else now + invariants.LEFTOVERS + 2
    kept = [n for i, n in enumerate(stage.nodes) if i not in invariants.unkept(played.dones)]
    gone = stage.wait(
        lambda: not any(stage.of_run(node, target.run) for node in kept),
        max(0.0, limit - now),
        strictly=False,
    )
    if gone and hard:
        first = min(effect.earliest for effect in invariants.effects(played.dones))
        played.gone_after = time.monotonic() - first
    if not gone:
        left = {node: [s.argv[:120] for s in stage.of_run(node, target.run)] for node in kept}
        over = f"{limit - now:.0f}+{slack(stage.meter.late):.1f} s"
        played.wrong.append(f"left {over} after the last fault: {left}")
    enough.touch()  # for a resume that found the machines free
    if not stage.wait(target.launch.over, LAST_WAIT + 10, strictly=False):
        played.wrong.append("launch: did not end with the run")
    for verb in target.resumes:
        if not stage.wait(verb.over, START):
            played.wrong.append("resume: did not end")


def _judge_proof(target: Target, played: Played) -> None:
    """Judge what a `stop` reports that has just ended: verified means that nothing is left."""
    if any(verb.ended and verb.status == 0 for verb in target.stops):
        for node in target.stage.nodes:
            left = target.stage.of_run(node, target.run)
            played.wrong += [f"stop: verified, but there is {seen.argv[:120]}" for seen in left]


def _learn_stops(target: Target, played: Played) -> None:
    """Say of each `stop` when it had ended."""
    ended = max((verb.ended or time.monotonic() for verb in target.stops), default=0.0)
    played.dones = [
        replace(done, ended=ended) if done.fault.kind in ("stop", "stops") else done
        for done in played.dones
    ]


def _judge_start(target: Target, played: Played, enough: Path) -> None:
    """Judge a run that did not get to where all ranks write, or was ended on its way there.

    When a fault comes that early, how far the start had got decides what is right, and only the
    nodes know that. What must hold whatever it was: `launch` ends in words and with a code that
    fit, the ranks' lines are in order, `stop` proves that all is gone, and so it is. And no start
    fails by a fault that every run outlives.
    """
    stage, launch, wrong = target.stage, target.launch, played.wrong
    enough.touch()
    for verb in (launch, *target.stops, *target.resumes):
        if not stage.wait(verb.over, EARLY_START + LAST_WAIT, strictly=False):
            wrong.append(f"{verb.name}: did not end")
    _judge_proof(target, played)
    if not launch.killed:
        ended = launch.first("ended") or {}
        wrong += invariants.wrong_code("launch", launch.status, int(ended.get("exit_code", -1)))
        wrong += invariants.wrong_end(ended)
        if all(done.fault.kind in OUTLIVED for done in played.dones if done.hit):
            right = invariants.allowed(played.dones)
            wrong += invariants.wrong_outcome("launch", ended, launch.status, right, stage.nodes)
    lines = [str(each["line"]) for each in launch.documents() if each["kind"] == "line"]
    witnesses = stage.witnesses(target.run)
    wrong += invariants.wrong_lines("launch", lines, witnesses, whole=False)
    faults.heal(stage)
    stop = stage.call("stop", "stop", target.run or "--all")
    wrong += invariants.wrong_code("last stop", stop.status, 0)


def _judge(target: Target, played: Played) -> None:
    """Judge what everybody says of the run, with all hosts whole again; then stop it."""
    stage, wrong = target.stage, played.wrong
    outcomes = invariants.allowed(played.dones)
    kinds = {done.fault.kind for done in played.dones if done.hit}
    _judge_launch(target, played)
    faults.heal(stage)
    witnesses = stage.witnesses(target.run)
    status = stage.start("status", "status", "--json", target.run)
    logs = stage.call("logs", "logs", "--raw", target.run)
    stage.end(status)
    wrong += invariants.wrong_code("status", status.status, 0)
    if status.status == 0:
        document = json.loads(status.out.read_text())
        code = invariants.code_of(document)
        wrong += invariants.wrong_outcome("status", document, code, outcomes, stage.nodes)
    wrong += invariants.wrong_code("logs", logs.status, 0)
    lines = logs.out.read_text().splitlines()
    wrong += invariants.wrong_lines("logs", lines, witnesses, whole=True)
    for verb in target.stops:
        spared = kinds & {"sshd", "sessions", "power"}
        wrong += invariants.wrong_code("stop", verb.status, 0, *({3} if spared else ()))
    for verb in target.resumes:
        _judge_early_resume(verb, played)
    again = stage.call("stop", "stop", target.run)
    wrong += invariants.wrong_code("last stop", again.status, 0)


def _judge_launch(target: Target, played: Played) -> None:
    launch, wrong = target.launch, played.wrong
    lines = [str(each["line"]) for each in launch.documents() if each["kind"] == "line"]
    witnesses = target.stage.witnesses(target.run)
    off = any(done.hit and done.fault.kind == "power" for done in played.dones)
    whole = not launch.killed and not off
    wrong += invariants.wrong_lines("launch", lines, witnesses, whole=whole)
    if launch.killed:
        return
    ended = launch.first("ended") or {}
    outcomes = invariants.allowed_from_afar(played.dones)
    wrong += invariants.wrong_code("launch", launch.status, int(ended.get("exit_code", -1)))
    wrong += invariants.wrong_outcome("launch", ended, launch.status, outcomes, target.stage.nodes)


def _judge_early_resume(verb: Verb, played: Played) -> None:
    """Judge a resume that was asked for while the run was there, or just ending."""
    ended = verb.first("ended") or {}
    ends = any(map(invariants.is_hard, played.dones))
    if verb.status == 0 and ends:
        return
    kinds = {done.fault.kind for done in played.dones if done.hit}
    refused = kinds & {"sshd", "sessions", "power", "disk"}
    right = ("busy", "check", "checkpoint", "plan", "start") if refused else ("busy",)
    played.wrong += invariants.wrong_code("early resume", verb.status, 125)
    if ended.get("ended_by") not in right:
        played.wrong.append(f"early resume: {ended}")


def _resume(target: Target, schedule: Schedule, played: Played, enough: Path) -> None:
    """Resume the run, now that it is over and the hosts are whole, and let it finish."""
    stage = target.stage
    verb = faults.resume(stage, target.run)
    after = Target(stage=stage, launch=verb)
    begun = _begun(after, schedule)
    enough.touch()
    if not begun or not stage.wait(verb.over, START):
        played.wrong.append("resume: its ranks did not begin, or did not end")
        verb.kill()
        return
    played.wrong += invariants.wrong_code("resume", verb.status, 0)
    lines = [str(each["line"]) for each in verb.documents() if each["kind"] == "line"]
    witnesses = stage.witnesses(after.run)
    played.wrong += invariants.wrong_lines("resume", lines, witnesses, whole=True)


def judge_remains(stage: Stage, played: Played) -> None:
    """Judge what is left on the hosts and on stderr, now that all is over."""

    def strangers() -> dict[str, list[str]]:
        found = {
            n: [s.argv[:100] for s in stage.processes(n) if not s.of_host] for n in stage.nodes
        }
        return {node: argvs for node, argvs in found.items() if argvs}

    if not stage.wait(lambda: not strangers(), 0, strictly=False):
        played.wrong.append(f"left after all: {strangers()}")
    off = {done.fault.node for done in played.dones if done.hit and done.fault.kind == "power"}
    for number, node in enumerate(stage.nodes):
        played.wrong += _sockets(stage, node)
        folder = stage.part(node, played.run or "none")
        names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
        played.wrong += invariants.wrong_files(node, names, lost_power=number in off)
    for verb in stage.verbs:
        if verb.err.exists():
            played.wrong += invariants.wrong_words(verb.name, verb.err.read_text())


def _sockets(stage: Stage, node: str) -> list[str]:
    """Return what is wrong with a host's sockets: a lock is held, a port listened on."""
    net = Path(f"/proc/{stage.first(node)}/net")
    held = [line for line in (net / "unix").read_text().splitlines() if "@clusterctl" in line]
    rows = [row.split() for row in (net / "tcp").read_text().splitlines()[1:]]
    listening = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"} - {22}
    wrong = [f"{node}: the lock is held: {line}" for line in held]
    return wrong + [f"{node}: port {port} is listened on" for port in sorted(listening)]
