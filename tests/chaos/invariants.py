"""What must hold whatever goes wrong, and what a schedule's run must have come to. Pure.

Where several answers are allowed it is because nobody on the nodes could know better: faults so
close together that either may be seen first, or a silence, of which each side sees the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.schedule import GRACE, HARD, LOST_AFTER, NODES, PAUSE, SHORT_CUT, Fault, Kind

NOTICED = 2.0
"""Seconds that a busy machine may take to see what a fault did; faults closer together than that
may be seen in any order."""
BEAT = 2.0
"""Seconds between two signs of life on the link."""
MARGIN = 2.0
"""Seconds by which a silence may seem longer than it was."""
DISK_FULL = 5.0
"""Seconds until the room that the logs' last blocks had is used up."""
AFTER_TERM = 2.0
LEFTOVERS = 1.0 + 5.0
FAILURE_GRACE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A fault as it was done, in seconds of one clock."""

    fault: Fault
    began: float
    ended: float
    """For a `stop`: when the verb had ended."""
    hit: bool
    """There was something left to break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run may have ended, and why."""

    state: str
    ended_by: str
    exit_code: int
    """Of `launch`."""
    kind: str | None = None
    """Of the first cause."""
    node: int | None = None

    def __str__(self) -> str:
        """Return it as one line."""
        where = "" if self.node is None else f"@node{self.node + 1}"
        return f"{self.state}/{self.ended_by}/{self.exit_code}/{self.kind}{where}"


FINISHED = Outcome(state="finished", ended_by="job", exit_code=0)
STOPPED = Outcome(state="stopped", ended_by="stop", exit_code=125)
UNKNOWN = Outcome(state="unreachable", ended_by="unknown", exit_code=125)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a fault brings the run to, and between when and when that is noticed."""

    earliest: float
    latest: float
    outcomes: frozenset[Outcome]
    fault: Fault


def is_hard(done: Done) -> bool:
    """Tell whether it ends the run."""
    return done.hit and done.fault.kind in HARD


def failed(kind: str, node: int, code: int) -> Outcome:
    """Return the outcome of a rank or launcher that ended badly."""
    return Outcome(state="failed", ended_by="job", exit_code=code, kind=kind, node=node)


def lost(node: int) -> Outcome:
    """Return the outcome of a node that was lost."""
    return Outcome(state="lost", ended_by="lost", exit_code=125, kind="node-lost", node=node)


def _supervisor_died(node: int) -> Outcome:
    return Outcome(
        state="failed", ended_by="supervisor", exit_code=125, kind="supervisor", node=node
    )


_OUTCOMES: dict[Kind, Callable[[int], Iterable[Outcome]]] = {
    "rank": lambda node: [failed("signal", node, 137)],
    # The agent's rank dies with it, and either end may be seen first.
    "agent": lambda node: [failed("launcher", node, 137), failed("signal", node, 137)],
    "disk": lambda node: [failed("exit", node, 1)],  # of a `print`
    "supervisor": lambda node: [_supervisor_died(node)],
    "power": lambda node: [lost(node)],
    # Each side hears nothing of the other, and workers speak to the master alone.
    "cut-off": lambda node: map(lost, range(NODES) if node == 0 else {0, node}),
    "stop": lambda _: [STOPPED],
    "stops": lambda _: [STOPPED],
}
"""What each hard fault alone leads to, on its node."""


def effects(dones: Sequence[Done]) -> list[Effect]:
    """Return what was to be expected of the faults that were done, one by one."""
    guards = {done.fault.node: done for done in dones if done.hit and done.fault.kind == "guard"}
    found = []
    for done in filter(is_hard, dones):
        fault, earliest, latest = done.fault, done.began, done.ended + NOTICED
        outcomes = frozenset(_OUTCOMES[fault.kind](fault.node))
        if fault.kind == "disk":
            latest += DISK_FULL
        if fault.kind in ("power", "cut-off"):
            # What the nodes hear last is up to a beat older than the silence; that is when it
            # began, however late they are sure of it.
            earliest -= BEAT
            latest += LOST_AFTER + MARGIN
        guard = guards.get(fault.node)
        if fault.kind == "supervisor" and guard is not None:
            # Nobody is left there to tell the others: they notice the silence.
            silent = frozenset({lost(fault.node)})
            latest += LOST_AFTER + MARGIN
            if guard.began > done.began:  # it may have told them before it was killed
                outcomes |= silent
            else:
                outcomes, earliest = silent, earliest - BEAT
        for pause in _windows(dones, "pause", PAUSE):
            if fault.node == pause[0] and pause[1] <= latest and earliest <= pause[2]:
                latest = max(latest, pause[2] + NOTICED)
        found.append(Effect(earliest=earliest, latest=latest, outcomes=outcomes, fault=fault))
    return found + _silences(dones)


def _windows(
    dones: Iterable[Done], kind: str, seconds: float
) -> Iterator[tuple[int, float, float]]:
    """Yield node, begin and end of each time that a node was silent for a while."""
    for done in dones:
        if done.hit and done.fault.kind == kind:
            yield done.fault.node, done.began, done.ended + seconds


def _silences(dones: Sequence[Done]) -> list[Effect]:
    """Return what several short silences on end may lead to: they are a long one."""
    windows = [*_windows(dones, "pause", PAUSE), *_windows(dones, "cut", SHORT_CUT)]
    found = []
    for worker in range(1, NODES):
        spans = sorted((began, ended) for node, began, ended in windows if node in (0, worker))
        merged: list[tuple[float, float]] = []
        for began, ended in spans:
            if merged and began - merged[-1][1] < MARGIN:
                merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
            else:
                merged.append((began, ended))
        for began, ended in merged:
            if ended - began > LOST_AFTER - MARGIN:
                outcomes = frozenset({FINISHED, lost(0), lost(worker)})
                fault = Fault(kind="cut", node=worker, after=0)
                found.append(
                    Effect(
                        earliest=began + LOST_AFTER - MARGIN,
                        latest=ended + NOTICED,
                        outcomes=outcomes,
                        fault=fault,
                    )
                )
    return found


def allowed(dones: Sequence[Done]) -> frozenset[Outcome]:
    """Return the outcomes that are right: what the first effect led to, and what may have been."""
    found = effects(dones)
    if not any(map(is_hard, dones)):
        return frozenset({FINISHED}).union(*(effect.outcomes for effect in found))
    first = min(effect.latest for effect in found)
    may_be = [effect.outcomes for effect in found if effect.earliest <= first]
    return frozenset[Outcome]().union(*may_be) - {FINISHED}


def allowed_from_afar(dones: Sequence[Done]) -> frozenset[Outcome]:
    """Return what is right while nodes without power cannot be asked.

    The others were stopped: how those ended that lost their power meanwhile is not known then.
    """
    outcomes = allowed(dones)
    off = any(done.hit and done.fault.kind == "power" for done in dones)
    return outcomes | {UNKNOWN} if off and STOPPED in outcomes else outcomes


def gone_by(dones: Sequence[Done]) -> float:
    """Return when no process of the run may be left on any node that is there and in touch."""
    first = min(effect.latest for effect in effects(dones))
    pauses = [ended for _, _, ended in _windows(dones, "pause", PAUSE) if ended > first]
    cuts = [ended for _, _, ended in _windows(dones, "cut", SHORT_CUT) if ended > first]
    cut_off = any(d.hit and d.fault.kind in ("cut-off", "power") for d in dones)
    # A node that is out of touch learns of the end from the silence.
    late = LOST_AFTER + MARGIN if cut_off else 0.0
    return max([first, *pauses, *cuts]) + late + max(GRACE, FAILURE_GRACE) + AFTER_TERM


def missed(dones: Sequence[Done]) -> list[str]:
    """Say which faults found no victim though nothing had ended the run: they tested nothing."""
    wrong = []
    for number, done in enumerate(dones):
        before = dones[:number]
        if effects(before):
            break
        # Without `launch` or sshd there are no sessions.
        ends_sessions = any(b.hit and b.fault.kind in ("controller", "sshd") for b in before)
        if not done.hit and not (done.fault.kind == "sessions" and ends_sessions):
            wrong.append(f"{done.fault}: no victim, though nothing had ended the run")
    return wrong


def unkept(dones: Sequence[Done]) -> frozenset[int]:
    """Return the nodes where nobody is left to end what is left: only `stop` does."""
    kills = ("supervisor", "guard")
    killed = {(done.fault.node, done.fault.kind) for done in dones if done.hit}
    return frozenset(n for n in range(NODES) if all((n, kind) in killed for kind in kills))


# What was seen.

_LINE = re.compile(r"^rank (\d+) line (\d+) \.{180}\|$")


def wrong_lines(
    who: str, lines: Iterable[str], witnesses: Mapping[int, int], *, whole: bool
) -> list[str]:
    """Say what is wrong with the lines that a reader got.

    Args:
        who: the reader.
        lines: what it got, of all ranks, in its order.
        witnesses: rank → how many lines it knows to have written.
        whole: the reader was there to the end.
    """
    wrong = []
    got = dict.fromkeys(witnesses, 0)
    torn: set[int] = set()
    for text in lines:
        found = _LINE.match(text)
        if found is None:
            if text.startswith("rank ") and text.split()[1:2]:
                torn.add(int(text.split()[1]))
            continue
        rank, number = int(found[1]), int(found[2])
        if number != got.get(rank, 0):
            wrong.append(f"{who}: rank {rank}: line {number} came after {got.get(rank, 0)} lines")
            got[rank] = number
        if rank in torn:
            wrong.append(f"{who}: rank {rank}: a line in pieces before line {number}")
            torn.discard(rank)
        got[rank] = got.get(rank, 0) + 1
    if whole:
        wrong += [
            f"{who}: rank {rank}: {got.get(rank, 0)} lines came, {wrote} were written"
            for rank, wrote in witnesses.items()
            if not wrote <= got.get(rank, 0) <= wrote + 1
        ]
    return wrong[:5]


def wrong_outcome(
    who: str,
    document: Mapping[str, Any],
    exit_code: int,
    outcomes: frozenset[Outcome],
    nodes: Sequence[str],
) -> list[str]:
    """Say why a run's end, as `launch` or `status` tells it, is none of those that are right."""
    cause = document.get("first_cause") or {}
    node = cause.get("node")
    found = Outcome(
        state=str(document.get("state")),
        ended_by=str(document.get("ended_by")),
        exit_code=exit_code,
        kind=cause.get("kind"),
        node=nodes.index(node) if node in nodes else None,
    )
    if found in outcomes:
        return []
    wanted = " or ".join(sorted(map(str, outcomes)))
    return [f"{who}: the run is {found} ({cause.get('message')}), expected {wanted}"]


_REFUSED = frozenset({"busy", "check", "controller", "plan", "start", "sync"})
_ENDED_BY_US = _REFUSED | {"lost", "start-timeout", "supervisor", "unknown"}
_CODES = {"job": {0, 1, 137}, "stop": {125, 130}}
"""Who else ended a launch → its exit codes, with the faults that there are."""


def wrong_end(ended: Mapping[str, Any]) -> list[str]:
    """Say why the end that a `launch` tells is none that the reference has."""
    by, code, state = (ended.get(key) for key in ("ended_by", "exit_code", "state"))
    codes = {125} if by in _ENDED_BY_US else _CODES.get(str(by), set())
    fits = (code == 0) == (state == "finished") and (by in _REFUSED) == (state is None)
    return [] if fits and code in codes else [f"launch: ended as {dict(ended)}"]


def code_of(status: Mapping[str, Any]) -> int:
    """Return what `launch` must have ended with by what `status` tells."""
    if status.get("state") == "finished":
        return 0
    cause = status.get("first_cause") or {}
    return int(cause.get("exit_status") or 1) if status.get("ended_by") == "job" else 125


def wrong_words(who: str, stderr: str) -> list[str]:
    """Say what no person should ever see."""
    bad = ("Traceback (most recent call last)", "this is a bug", "Exception ignored")
    return [f"{who}: {word!r} on stderr" for word in bad if word in stderr]


def wrong_code(who: str, code: int | None, *right: int) -> list[str]:
    """Say that a verb's exit code is none of those that are right; None: it did not end."""
    if code in right:
        return []
    return [f"{who}: exit code {code}, expected {' or '.join(map(str, right))}"]


FOLDER = re.compile(
    r"agent\.py|job\.json|hostfile|supervisor\.json|(events|samples)\.jsonl|(end|attempts|others)\.json"
    r"|launcher\.(log|times|dropped)|nccl|torchrun(/.*)?|ranks|ranks/\d+\.(log|times|dropped)|processes|beat|barred|hang(/.*)?|__pycache__.*"
)


_HALF_WRITTEN = re.compile(r"(\.[0-9a-f]{12})?\.new$")


def wrong_files(node: str, names: Iterable[str], *, lost_power: bool = False) -> list[str]:
    """Say which files of a run's folder are none of those that the reference names.

    A node that loses its power keeps what it was just writing.
    """
    return [
        f"{node}: {name} is left in the run's folder"
        for name in names
        if not FOLDER.fullmatch(_HALF_WRITTEN.sub("", name) if lost_power else name)
    ]


def describe(schedule: object, dones: Sequence[Done]) -> str:
    """Return a schedule with what was done of it."""
    missed = [f"{done.fault.kind}: no victim" for done in dones if not done.hit]
    return f"{schedule}{f' ({chr(44).join(missed)})' if missed else ''}"
