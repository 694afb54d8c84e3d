"""All faults by name, and the record of the active ones."""

import json
from collections.abc import Callable
from dataclasses import asdict
from difflib import get_close_matches

from clusterctl.errors import UsageError
from clusterctl.sandbox.faults import accelerators, network, power, storage
from clusterctl.sandbox.faults.interface import Fault, Place
from clusterctl.sandbox.layout import Layout
from clusterctl.values import dataclass

FAULTS: dict[str, Fault] = {
    fault.kind: fault for area in (network, power, storage, accelerators) for fault in area.FAULTS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFault:
    """A fault that a host has now."""

    node: str
    kind: str
    value: str


def find(kind: str, node: str = "NODE") -> Fault:
    """Return the fault of this name; `node` is for the hint."""
    if kind in FAULTS:
        return FAULTS[kind]
    near = get_close_matches(kind, FAULTS, n=1)
    raise UsageError(
        f"KIND: expected {', '.join(FAULTS)}; found {kind!r}",
        hint=f"clusterctl sandbox fault {node} {near[0]}"
        if near
        else "clusterctl sandbox fault --help",
    )


def active(layout: Layout) -> list[ActiveFault]:
    """Return the faults of a sandbox, oldest first."""
    if not layout.faults.exists():
        return []
    return [ActiveFault(**item) for item in json.loads(layout.faults.read_text())]


def _write(layout: Layout, faults: list[ActiveFault]) -> None:
    layout.faults.write_text(json.dumps([asdict(fault) for fault in faults]))


def inject(layout: Layout, fault: Fault, place: Place) -> ActiveFault:
    """Inject a fault; record it first, because a failure may leave half of it."""
    if place.backend.name == "loopback" and not fault.loopback:
        raise UsageError(
            f"{fault.kind}: hosts of the loopback backend cannot have it",
            hint="as root: clusterctl sandbox up --backend netns",
        )
    added = ActiveFault(node=place.host.name, kind=fault.kind, value=place.value)
    before = active(layout)
    _write(layout, [*before, added])
    try:
        fault.inject(place)
    except UsageError:
        _write(layout, before)
        raise
    return added


def heal(layout: Layout, place_of: Callable[[ActiveFault], Place]) -> list[ActiveFault]:
    """Undo all faults, the newest first, and return them."""
    healed = active(layout)[::-1]
    for at, one in enumerate(healed):
        FAULTS[one.kind].heal(place_of(one))
        _write(layout, healed[at + 1 :][::-1])
    return healed
