"""The registry of checks, and how their findings become one verdict.

A check is a pure function. Its parameters name what it needs: the `facts` of all nodes, or one
`node` if it judges each alone, or a `gpu` that the run will use, with its `node`; besides, the
`network` and the `cluster`. It reports nothing for a node that did not answer. Its findings for a
node are dropped if a check in `explained_by` failed there: one cause, one finding.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import wraps
from typing import Any, TypeVar

from clusterctl.checks.finding import Finding, Status, fold_findings, passed, skip, unknown
from clusterctl.checks.gpu.planned import planned
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

Facts = Mapping[str, NodeFacts]
Judge = Callable[[Facts, Network, Cluster], Iterable[Finding]]
Rule = TypeVar("Rule", bound=Callable[..., Iterable[Finding]])
NEEDS = frozenset({"facts", "node", "gpu", "network", "cluster"})
"""What the parameters of a rule may be."""
Applies = Callable[[NodeFacts, Cluster], bool]

_SUDO = re.compile(r"\bsudo ")
SSH = "ssh.connect"
"""Its failure explains the failure of every other check."""
QUARANTINE = "node.quarantine"
"""Judged without the node's answer."""
_NO_GPUS, _NO_RDMA, _NOT_ASKED = "no GPU is used", "no RDMA device", "the job does not ask for it"
SKIP_REASONS = (
    ("accelerator.", _NO_GPUS),
    (QUARANTINE, "what this machine remembers was not read"),
    ("node.shm", _NO_GPUS),
    ("node.stack", _NO_GPUS),
    ("storage.noexec", _NO_GPUS),
    ("python.driver", _NO_GPUS),
    ("python.arch", _NO_GPUS),
    ("python.cuda", _NO_GPUS),
    ("python.nccl", _NO_GPUS),
    ("network.rdma", _NO_RDMA),
    ("network.efa", _NO_RDMA),
    ("network.transport", _NO_RDMA),
    ("node.memlock", _NO_RDMA),
    ("node.machine-id", "no machine id"),
    ("storage.speed", "the job names no checkpoints"),
    ("network.bond", "no bond of interfaces"),
    ("network.proxy", "no proxy is set"),
    ("deep.rails", "only with --deep, if all nodes have GPUs"),
    ("deep.transport", "only with --deep, if all nodes have GPUs"),
    ("deep.", "only with --deep"),
    ("job.", _NOT_ASKED),
    ("storage.model", _NOT_ASKED),
    ("storage.needs", _NOT_ASKED),
    ("python.launcher", _NOT_ASKED),
)
"""The beginning of a check's id, and why it is skipped on a node that it does not apply to."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: its name, why it matters, and the function that judges the facts.

    As a decorator it registers that function.
    """

    id: str
    _: KW_ONLY
    title: str
    why: str
    fix: str = ""
    """How a failure is repaired in general; a finding's remedy is the command for its nodes."""
    source: str = ""
    """Where the facts behind the rule are documented: a URL, or a page in docs/."""
    judge: Judge = lambda _facts, _network, _cluster: ()
    blocks: bool = True
    """A fail or unknown stops `launch`: the run could not work."""
    final: bool = False
    """Not even `launch --force` gets past a fail: the node itself refuses the start."""
    pairwise: bool = False
    """Judges the connections between nodes; skipped if none were tried."""
    after_sync: bool = False
    """Judges the synced code: `launch` runs it after `sync`."""
    explained_by: tuple[str, ...] = ()
    """Checks whose failure on a node explains a failure of this one."""
    required_facts: tuple[str, ...] = ()
    """Fields of `NodeFacts`; if one is unknown, the result is unknown."""
    applies: Applies = lambda _node, _cluster: True
    """Whether there is anything to judge on a node."""

    def document(self) -> dict[str, object]:
        """Return it as JSON, without its functions."""
        told = ("id", "title", "why", "fix", "source", "blocks", "explained_by")
        return {name: getattr(self, name) for name in told}

    def __call__(self, rule: Rule) -> Rule:
        """Register this check with the decorated function."""
        assert self.id not in CHECKS, self.id
        CHECKS[self.id] = replace(self, judge=_judge_by(rule))
        return rule


CHECKS: dict[str, Check] = {}
"""By id, in the order in which they are judged; importing `checks.all` fills it."""


def _judge_by(rule: Callable[..., Iterable[Finding]]) -> Judge:
    """Return the judge of all facts that gives a rule what its parameters name."""
    code = rule.__code__
    needs = code.co_varnames[: code.co_argcount]
    assert NEEDS.issuperset(needs), rule

    @wraps(rule)
    def judge(facts: Facts, network: Network, cluster: Cluster) -> Iterator[Finding]:
        cases: Iterable[dict[str, Any]] = [{"facts": facts}]
        if "gpu" in needs:
            cases = ({"node": node, "gpu": gpu} for node, gpu in planned(facts, cluster))
        elif "node" in needs:
            cases = ({"node": node} for node in facts.values())
        for case in cases:
            known = {"network": network, "cluster": cluster, **case}
            yield from rule(*(known[name] for name in needs))

    return judge


def judge_all(
    checks: Iterable[Check], facts: Facts, network: Network, cluster: Cluster
) -> tuple[Finding, ...]:
    """Judge these checks in their order and fold their findings, worst first."""
    failed: dict[str, set[str]] = {}
    findings: list[Finding] = []
    for rule in checks:
        causes = () if rule.id in {SSH, QUARANTINE} else (SSH, *rule.explained_by)
        explained = set().union(*(failed.get(name, set()) for name in causes))
        found = [*rule.judge(facts, network, cluster), *_unread(rule, facts, cluster)]
        # A failure that is explained explains others in turn. So does a check's own skip: it has
        # seen the cause itself, such as a missing shared filesystem. One with a value is a note.
        failed[rule.id] = {
            node
            for finding in found
            if finding.status in {"fail", "unknown"}
            or (finding.status == "skip" and not finding.found)
            for node in finding.nodes
        }
        for finding in (*found, *_rest(rule, found, facts, cluster, explained)):
            left = tuple(node for node in finding.nodes if node not in explained)
            if left or not finding.nodes:
                findings += _by_login(replace(finding, check=rule.id, nodes=left), facts)
    return fold_findings(findings)


def _by_login(finding: Finding, facts: Facts) -> Iterator[Finding]:
    """Drop `sudo` for the nodes where the login is root: a container often has no sudo."""
    plain = _SUDO.sub("", finding.remedy)
    as_root = {n: None for n in finding.nodes if n in facts and facts[n].uid == 0}
    if plain == finding.remedy or not as_root:
        yield finding
        return
    yield replace(finding, nodes=tuple(as_root), remedy=plain)
    if others := tuple(node for node in finding.nodes if node not in as_root):
        yield replace(finding, nodes=others)


def _unread(rule: Check, facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Yield unknown for each node that lacks a required fact."""
    for node in facts.values():
        missing = [name for name in rule.required_facts if getattr(node, name) is None]
        if node.answered and missing and rule.applies(node, cluster):
            why = node.why_unknown(missing[0]) or "could not be read"
            remedy = "run the check again as a user who may read it"
            if node.timed_out:
                why = f"{why}; no answer in time to {node.timed_out[0]}"
                remedy = f"when the node is less busy: clusterctl check --nodes {node.node}"
            yield unknown(
                node.node,
                "could not check this",
                wanted=rule.title,
                found=f"{missing[0]}: {why}",
                remedy=remedy,
            )


def _why_skipped(rule: Check) -> str:
    if rule.pairwise:
        return "not tried"
    reasons = (reason for prefix, reason in SKIP_REASONS if rule.id.startswith(prefix))
    return next(reasons, "does not apply to these nodes")


def _rest(
    rule: Check, found: list[Finding], facts: Facts, cluster: Cluster, explained: set[str]
) -> Iterator[Finding]:
    """Yield pass, or skip if there is nothing to judge, for the nodes without a finding."""
    named = {name for finding in found for name in finding.nodes} | explained
    well: list[str] = []
    skipped: list[str] = []
    for node in facts.values():
        if node.node in named or not node.answered:
            continue
        judged = rule.applies(node, cluster) and not (rule.pairwise and node.between is None)
        (well if judged else skipped).append(node.node)
    if well:
        yield passed(tuple(well), rule.title)
    if skipped:
        yield skip(tuple(skipped), _why_skipped(rule))


def exit_code(statuses: Collection[Status], *, strict: bool = False) -> int:
    """Return 1 for a fail (`strict`: or a warning), else 3 for an unknown, else 0."""
    if "fail" in statuses or (strict and "warn" in statuses):
        return 1
    return 3 if "unknown" in statuses else 0
