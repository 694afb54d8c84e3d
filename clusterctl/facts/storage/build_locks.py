"""Locks that builds of torch's extensions left in the cache."""

from __future__ import annotations

import re

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question
from clusterctl.facts.machine.machine_state import seconds
from clusterctl.facts.request import FactRequest
from clusterctl.values import dataclass

MOST = 20
"""Locks that count of a node's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLock:
    """One lock, which a build removes when it ends, but not if it is killed."""

    path: str
    age_s: float = 0.0
    held: bool = True
    """A process on the node has it open, so a build is at work; or it is not known."""


def _ask(wanted: FactRequest) -> Question:
    return Question(build_locks=wanted.build_locks)


@Fact("build_locks", _ask)
def parse_build_locks(answers: Answers) -> tuple[BuildLock, ...] | None:
    """Return the locks; None: they were not asked for, or could not be read."""
    listed = answers.object("build-locks").get("locks")
    patterns = answers.wanted.build_locks
    if not patterns or not isinstance(listed, list):
        return None
    ends = [re.escape(each.lstrip("~")).replace(r"\*", "[^/\n]+") for each in patterns]
    asked = re.compile(rf"(?:/[^\n]*)?(?:{'|'.join(ends)})")
    found = []
    for one in listed[:MOST]:
        path = one.get("path") if isinstance(one, dict) else None
        if isinstance(path, str) and asked.fullmatch(path):
            age = seconds(one.get("age_s")) or 0.0
            found.append(BuildLock(path=path, age_s=age, held=one.get("held") is not False))
    return tuple(found)
