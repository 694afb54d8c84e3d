"""Programs of the node itself: its own Python, and rsync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, typed
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPython:
    """The Python that runs clusterctl's own code on the node."""

    executable: str
    lacks: tuple[str, ...] = ()
    """Modules of the standard library that a run may need and this build does not have."""


@Fact("agent")
def parse_agent(answers: Answers) -> AgentPython | None:
    """Return the Python that read these facts."""
    process = _part(answers, "agent")
    lacks = process.get("lacks")
    if not isinstance(lacks, list):
        return None
    names = tuple(str(name).lstrip("_") for name in lacks)
    return AgentPython(executable=str(process.get("executable", "")), lacks=names)


@Fact("rsync", Question(programs=("rsync",)))
def parse_rsync(answers: Answers) -> str | None:
    """Return its path; empty if it is not installed."""
    return typed(str, _part(answers, "programs").get("rsync"))


def _part(answers: Answers, name: str) -> Mapping[str, Any]:
    found = answers.object("self").get(name)
    return found if isinstance(found, dict) else {}
