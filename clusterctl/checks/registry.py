"""The one list of checks, and how a verdict comes from them.

A check is a pure function of the facts. It says nothing of a node that did not answer, and what
it says of a node is dropped where a check named in its `after` has already failed there: one
cause gives one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from clusterctl.checks.finding import Finding, Status, fold_findings
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

Facts = Mapping[str, NodeFacts]
Judge = Callable[[Facts, Network, Cluster], Iterable[Finding]]
Applies = Callable[[NodeFacts, Cluster], bool]

SSH = "ssh.connect"
"""The check that every other one comes after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule: what it is called, why it matters, what it says of the facts."""

    id: str
    title: str
    why: str
    judge: Judge
    blocks: bool = True
    """A run cannot work where this fails or could not be looked at: `launch` stops."""
    between: bool = False
    """Judges the second round trip: not said where that was not made."""
    code: bool = False
    """Judges what `sync` brings: `launch` judges it after."""
    after: tuple[str, ...] = ()
    """Checks whose failure on a node explains this one's."""
    needs: tuple[str, ...] = ()
    """Fields of `NodeFacts` without which nothing can be said of a node."""
    applies: Applies = lambda _node, _cluster: True
    """Whether there is anything to judge on a node."""


CHECKS: dict[str, Check] = {}
"""By id, in the order in which they are judged; importing `checks.all` fills it."""


def check(
    identity: str,
    *,
    title: str,
    why: str,
    after: tuple[str, ...] = (),
    blocks: bool = True,
    between: bool = False,
    code: bool = False,
    needs: tuple[str, ...] = (),
    applies: Applies = lambda _node, _cluster: True,
) -> Callable[[Judge], Judge]:
    """Register the decorated function as a check."""

    def register(judge: Judge) -> Judge:
        assert identity not in CHECKS, identity
        CHECKS[identity] = Check(
            id=identity, title=title, why=why, judge=judge,
            blocks=blocks, between=between, code=code, after=after,
            needs=needs, applies=applies,
        )  # fmt: skip
        return judge

    return register


def judge_all(
    checks: Iterable[Check], facts: Facts, network: Network, cluster: Cluster
) -> tuple[Finding, ...]:
    """Judge these checks in their order and fold what they say, worst first."""
    failed: dict[str, set[str]] = {}
    said: list[Finding] = []
    for rule in checks:
        causes = () if rule.id == SSH else (SSH, *rule.after)
        explained = set().union(*(failed.get(name, set()) for name in causes))
        found = [*rule.judge(facts, network, cluster), *_unlooked(rule, facts, cluster)]
        # A skip of the rule's own: a cause that it knows itself, a missing share, has been said.
        bad = {n for f in found if f.status in {"fail", "unknown", "skip"} for n in f.nodes}
        # What is explained explains in turn: the effects of an effect are not said either.
        failed[rule.id] = bad
        for finding in found:
            left = tuple(node for node in finding.nodes if node not in explained)
            if left or not finding.nodes:
                said.append(replace(finding, nodes=left))
        said.extend(_rest(rule, found, facts, cluster, explained))
    return fold_findings(said)


def _unlooked(rule: Check, facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Say where a fact is unknown that the rule needs: that is not a pass."""
    for node in facts.values():
        missing = [name for name in rule.needs if getattr(node, name) is None]
        if node.answered and missing and rule.applies(node, cluster):
            yield Finding(
                check=rule.id,
                status="unknown",
                nodes=(node.node,),
                message="this could not be looked at",
                wanted=rule.title,
                found=f"{missing[0]}: {node.why_unknown(missing[0]) or 'it could not be read'}",
                remedy="run the check again, as a user who may look",
            )


def _rest(
    rule: Check, found: list[Finding], facts: Facts, cluster: Cluster, explained: set[str]
) -> Iterator[Finding]:
    """Say pass, or skip where there is nothing to judge, for the nodes not spoken of."""
    spoken = {name for finding in found for name in finding.nodes} | explained
    passed: list[str] = []
    skipped: list[str] = []
    for node in facts.values():
        if node.node in spoken or not node.answered:
            continue
        judged = rule.applies(node, cluster) and not (rule.between and node.between is None)
        (passed if judged else skipped).append(node.node)
    if passed:
        yield Finding(check=rule.id, status="pass", nodes=tuple(passed), message=rule.title)
    if skipped:
        why = "not tried" if rule.between else "nothing to judge"
        yield Finding(check=rule.id, status="skip", nodes=tuple(skipped), message=why)


def exit_code(statuses: Collection[Status], *, strict: bool = False) -> int:
    """Return 1 where something failed, 3 where nothing did but something is unknown, else 0.

    Args:
        statuses: of all findings.
        strict: a warning counts as a failure.
    """
    if "fail" in statuses or (strict and "warn" in statuses):
        return 1
    return 3 if "unknown" in statuses else 0
