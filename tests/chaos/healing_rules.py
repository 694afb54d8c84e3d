"""What must hold of a training that restarts itself, whatever goes wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.node.restart.judgement import JITTER, WAITS
from tests.chaos.invariants import Done
from tests.chaos.schedule import NODES, Kind

RESTARTS = 6
RESTARTED: tuple[Kind, ...] = ("rank", "agent", "hang", "silence")
"""Faults after which the run starts again."""
OUTLIVED: tuple[Kind, ...] = ("controller", "guard", "pause", "cut", "sessions", "sshd")
ENDING: dict[Kind, frozenset[str]] = {
    "supervisor": frozenset({"failed", "lost"}),
    "cut-off": frozenset({"lost"}),
    "power": frozenset({"lost"}),
    "mount-off": frozenset({"failed"}),
    "full-off": frozenset({"failed"}),
    "stop": frozenset({"stopped", "failed", "lost"}),
    "stops": frozenset({"stopped", "failed", "lost"}),
}
"""Faults that end the run → its states."""
REPLACED: tuple[Kind, ...] = ("power", "cut-off")
"""Faults that end a run only at its master, or a second time, if it has a spare node."""
SPOILS: dict[Kind, frozenset[str]] = {
    "guard": frozenset({"failed"}),
    "mount": frozenset({"failed"}),
    "full": frozenset({"failed"}),
}
"""Faults that end the run only if it would be started again meanwhile → its states."""
SILENT: tuple[Kind, ...] = ("pause", "cut", "silence", "cut-off")
"""Of these a run has one: silences on end are a long one."""
NAMED: tuple[Kind, ...] = ("mount-off", "full-off")
"""What `no_restart` must name the node of."""


def wrong_end(
    document: Mapping[str, Any], dones: list[Done], nodes: list[str], *, spare: bool = False
) -> list[str]:
    """Say why a run must not have ended as `status` tells; `spare`: the last node stands by."""
    hit = [done.fault for done in dones if done.hit]
    kinds = {fault.kind for fault in hit}
    state, why = document.get("state"), str(document.get("no_restart") or "")
    lost = [fault.node for fault in hit if fault.kind in REPLACED]
    replaced = spare and len(set(lost)) == 1 and lost[0] > 0
    ends = kinds & set(ENDING) - (set(REPLACED) if replaced else set())
    states = frozenset[str]().union(*(ENDING[kind] for kind in ends))
    if kinds & set(RESTARTED) or replaced:
        states |= frozenset[str]().union(*(SPOILS[kind] for kind in kinds & set(SPOILS)))
        # A node that is lost between two attempts leaves the state of the last one.
        states |= {"failed"} if ends else frozenset()
    if not ends:
        states |= {"finished"}
    wrong = []
    if state not in states:
        wrong.append(f"the run is {state} ({why}), expected {' or '.join(sorted(states))}")
    if state in {"failed", "lost"} and not why:
        wrong.append(f"the run is {state}, and nothing says why it was not started again")
    for fault in hit:
        named = nodes[fault.node] in why
        if fault.kind in NAMED and len(ends) == 1 and not named:
            wrong.append(f"no_restart does not name {nodes[fault.node]}: {why}")
    return wrong


def wrong_attempts(
    begins: list[dict[str, Any]],
    events: Mapping[str, list[dict[str, Any]]],
    world: int = NODES,
    *,
    unmounted: bool = False,
) -> list[str]:
    """Say which attempts of so many ranks overlapped, or began from an old checkpoint.

    `unmounted`: a node may have lost its storage after the nodes had agreed on a checkpoint.
    """
    wrong = [
        f"attempt {one['attempt']} began while {one['overlaps']} lived"
        for one in begins
        if one["overlaps"]
    ]
    for attempt in sorted({one["attempt"] for one in begins} - {1}):
        ranks = [one for one in begins if one["attempt"] == attempt]
        seen = [set(one["complete"]) for one in ranks if one["complete"] or not unmounted]
        newest = max(set.intersection(*seen), default=None) if seen else None
        for path in {one["resumed"] for one in ranks}:
            step = int(path.rpartition("step-")[2]) if path else None
            if step != newest and len(ranks) == world:
                wrong.append(f"attempt {attempt} began from step {step}, expected {newest}")
    for node, found in events.items():
        ups = [one for one in found if one["kind"] == "supervisor-up"]
        if len(ups) > RESTARTS + 1:
            wrong.append(f"{node}: {len(ups)} attempts, expected {RESTARTS + 1} at most")
    return wrong


def wrong_waits(events: list[dict[str, Any]]) -> list[str]:
    """Say which attempt the master began too soon, by its own events."""
    wrong = []
    fruitless, before = 0, ""  # no attempt yet; None: from the beginning
    agains: dict[int, list[dict[str, Any]]] = {}
    for one in events:
        if one["kind"] == "again":
            agains.setdefault(one["attempt"], []).append(one)
    for attempt, (first, *_, again) in ((n, [found[0], *found]) for n, found in agains.items()):
        waited = again["time"] - first["time"] + again["wait_s"]  # decided again meanwhile
        fruitless = fruitless + 1 if again["checkpoint"] == before else 0
        before = again["checkpoint"]
        least = WAITS[min(fruitless, len(WAITS) - 1)] * (1 - JITTER) if fruitless else 0.0
        if waited < least - 0.1:
            wrong.append(f"attempt {attempt} waited {waited:.1f} s, not {least}")
        ups = [one["time"] for one in events if one["kind"] == "supervisor-up"]
        after = min((up for up in ups if up > again["time"]), default=None)
        if after is not None and after < again["time"] + again["wait_s"] - 0.1:
            wrong.append(f"attempt {attempt} began {after - again['time']:.1f} s later")
    return wrong


def wrong_after_stop(stopped: float, events: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Say where an attempt began after a stop was verified."""
    return [
        f"{node}: an attempt began {one['time'] - stopped:.1f} s after the stop"
        for node, found in events.items()
        for one in found
        if one["kind"] == "supervisor-up" and one["time"] > stopped
    ]
