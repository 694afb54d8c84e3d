"""All facts of a node in one round trip: what to ask, and the facts from the raw answers."""

from collections.abc import Mapping
from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import FACTS, Fact, Unreadable
from clusterctl.facts.gpu import gpus, pcie
from clusterctl.facts.machine import kernel_log, machine_state, system
from clusterctl.facts.machine.system import Clock
from clusterctl.facts.network import counters, firewall, interfaces, ports, rdma, routes
from clusterctl.facts.nodefacts import NodeFacts, UnknownFact
from clusterctl.facts.request import CLOCK_ROUNDS, FactRequest
from clusterctl.facts.software import programs, python, settings
from clusterctl.facts.storage import storage
from clusterctl.wire import plain

SOURCES = (
    firewall, counters, gpus, interfaces, kernel_log, machine_state, pcie, ports, programs,
    python, rdma, routes, settings, storage, system,
)  # fmt: skip
"""Each has registered its facts."""
_LISTS = (
    "files", "links", "kernel_log", "variables", "local_paths", "programs", "build_locks",
)  # fmt: skip
EVERY_FACT = tuple(FACTS[name] for name in sorted(FACTS))


def read_arguments(wanted: FactRequest) -> dict[str, Any]:
    """Return the arguments of the node's `read`."""
    asked = [fact.ask(wanted) for fact in _wanted_facts(wanted)]

    def all_of(name: str) -> list[Any]:
        return list(dict.fromkeys(one for each in asked for one in getattr(each, name)))

    return {
        **{name: all_of(name) for name in _LISTS},
        "globs": sorted(all_of("globs"), key=_may_hang),
        "folders": folder_questions(*(each.folders for each in asked)),
        "rdma": folder_questions(*(each.rdma for each in asked)),
        "paths": [plain(place) for place in all_of("paths")],
        "commands": sorted((dict(c) for each in asked for c in each.commands), key=_quickness),
        "lock": wanted.lock,
        "clock": CLOCK_ROUNDS,
    }


def _wanted_facts(wanted: FactRequest) -> tuple[Fact, ...]:
    return tuple(fact for fact in EVERY_FACT if not wanted.only or fact.name in wanted.only)


def _may_hang(pattern: str) -> bool:
    """Tell what to look for last: a home may be on a mount that hangs."""
    return pattern.startswith("~")


def _quickness(command: Mapping[str, Any]) -> float:
    """Return the place of a program: what may take longest is started first."""
    return -float(command["limit_s"])


def folder_questions(*questions: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return what to ask of the small files in folders."""
    files: dict[str, dict[str, None]] = {}
    for question in questions:
        for path, names in question.items():
            files.setdefault(path, {}).update(dict.fromkeys(names))
    return [{"path": path, "files": list(names)} for path, names in files.items()]


def parse_facts(
    node: str, answers: Answers, wanted: FactRequest, *, clock: Clock | None
) -> NodeFacts:
    """Return the facts of a node that answered."""
    answers = Answers(by_key=answers.by_key, wanted=wanted)
    found: dict[str, Any] = {}
    gaps: list[UnknownFact] = []
    for fact in _wanted_facts(wanted):
        try:
            value = answers.once(fact.parse)
        except Unreadable as unknown:
            gaps += [UnknownFact(what=fact.name, why=why) for why in unknown.args]
        else:
            if value is not None:
                found[fact.name] = value
    return NodeFacts(
        node=node,
        clock=clock,
        gaps=tuple(gaps),
        timed_out=tuple(key for key, one in answers.by_key.items() if one.state == "timeout"),
        **found,
    )
