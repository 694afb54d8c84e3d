"""Decides whether a run that failed is started again: its first cause decides. Pure."""

from __future__ import annotations

import random
import re
import signal
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from clusterctl.node.printed_cause import PrintedCause, cause_of
from clusterctl.node.restart.agreement import Agreement, Checkpoint
from clusterctl.node.restart.own_rules import Asked, FoundPatterns, asked_by
from clusterctl.node.restart.rules import FRUITLESS, RULES, Rule
from clusterctl.node.run.files.node_job import Restart

NO_PROGRESS = 4
"""The exit code of a run that was ended because restarts brought it no further."""
WAITS = (1.0, 15.0, 60.0)
"""Seconds before a restart: longer each time, until a newer checkpoint is there.

The first costs little: most failures pass at once. The next let a network come back. After one
process that was killed, there is nothing to wait for: the first restart comes at once.
"""
JITTER = 0.2
"""Part of a wait by which it may be longer or shorter: runs that failed at once come apart."""
_SHOWN = 300
"""Characters of a printed line that a reason has."""
_SIGNALS = 128
_USAGE = 2
_NOT_A_COMMAND = (126, 127)
NO_CHECKPOINT = "no checkpoint can be taken"

Checks = Mapping[str, Mapping[str, Optional[str]]]
"""Node → what `node_check` found there: name of the check → why the node is unfit.

An empty reason: it is fit. None: that is not known. A node that is absent did not answer.
"""


class Failure(NamedTuple):
    """A rank or launcher that ended with a failure that was not ordered."""

    node: str
    at: float
    """When, on the master's clock."""
    rank: Optional[int] = None
    """None: a launcher."""
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    oom: bool = False
    """The kernel's out-of-memory killer ended a process on that node meanwhile."""
    lines: Tuple[str, ...] = ()
    """The last that it printed."""


class AttemptEnd(NamedTuple):
    """How an attempt ended, as the master knows it."""

    attempt: int
    """From 1."""
    by: str
    """As in end.json, but never `peer`: what the other node told counts."""
    reason: str = ""
    failures: Tuple[Failure, ...] = ()
    """Of all nodes, in any order."""
    lost: Tuple[str, ...] = ()
    """Nodes that fell silent."""
    stuck: Tuple[str, ...] = ()
    """Nodes with processes that no signal ended."""
    blamed: Tuple[Tuple[str, str], ...] = ()
    """Nodes that may be the reason of a hang, not all of them, each with why."""
    step: Optional[int] = None
    """The newest that was printed."""
    start: Optional[Checkpoint] = None
    """What the attempt was started from; None: from the beginning."""
    patterns: FoundPatterns = FoundPatterns()
    """Which of the job's are in what failed."""


class Decision(NamedTuple):
    """What becomes of the run."""

    action: str
    """again: on the same nodes; without: only without some; end."""
    why: str
    """The cause and the rule, for people."""
    wait_s: float = 0.0
    """Before the next attempt."""
    without: Tuple[str, ...] = ()
    """The nodes to leave out."""
    exit_code: Optional[int] = None
    """Of an end that has one of its own; None: that of the attempt."""


class JudgedCause(NamedTuple):
    """Why an attempt ended."""

    kind: str
    words: str
    nodes: Tuple[str, ...] = ()
    """Where it was."""
    line: str = ""
    """What was printed; empty: nothing that tells."""


def decide(
    ends: Sequence[AttemptEnd],
    limits: Restart,
    found: Agreement,
    checks: Checks,
    *,
    seed: str = "",
) -> Decision:
    """Decide what becomes of a run whose last attempt has failed.

    Args:
        ends: of all attempts, the first one first.
        found: the checkpoint that the next attempt would start from.
        checks: what all nodes found that answered.
        seed: of the jitter; another one for each run.
    """
    end = ends[-1]
    cause = first_cause(end)
    rule, asked = RULES[cause.kind], _asked(end, limits)
    final = _final(cause, rule, asked)
    if final:
        return Decision("end", final)
    since = _since_progress(ends, found.newest)
    limit = _limit(since, limits, found, rule if asked is None else None)
    if limit is not None:
        return limit._replace(why="%s; %s" % (cause.words, limit.why))
    skipped = "" if found.newest else "".join("; not taken: %s" % one for one in found.skipped[:1])
    unfit = unfit_nodes(end, limits, checks)
    if unfit:
        words = "; ".join("%s: %s" % (node, why) for node, why in unfit.items())
        if checks and not set(checks) - set(unfit):
            return Decision("end", "%s; no node is fit: %s" % (cause.words, words))
        if cause.kind != "lost" and cause.words not in unfit.values():
            words = "%s; without %s" % (cause.words, words)
        return Decision("without", words + skipped, _wait(since, seed, end.attempt), tuple(unfit))
    why = cause.words if asked is None else "%s; again: %s" % (cause.words, asked.words)
    return Decision("again", why + skipped, _wait(since, seed, end.attempt))


def _final(cause: JudgedCause, rule: Rule, asked: Optional[Asked]) -> str:
    """Return why no other attempt can help or is wanted; empty: one may."""
    if cause.kind == "stop":
        return cause.words
    if asked is not None:
        return "" if asked.again else "%s; never again: %s" % (cause.words, asked.words)
    if rule.action == "end":
        return "%s: another attempt would end the same way" % cause.words
    return ""


def first_cause(end: AttemptEnd) -> JudgedCause:
    """Return why an attempt ended: the earliest failure that is no echo of another."""
    kind = end.by
    if end.by == "start-timeout":
        # Of the first attempt the start itself is wrong; later ones came together before.
        kind = "start" if end.attempt == 1 else "late"
    if kind == "hang":
        nodes = tuple(node for node, _ in end.blamed)
        more = "; ".join("%s on %s" % (why, node) for node, why in end.blamed)
        words = end.reason or RULES[kind].words
        return JudgedCause("hang-node" if nodes else kind, _words(words, more), nodes)
    if kind in ("stop", "world", "supervisor", "start", "late"):
        return JudgedCause(kind, _words(RULES[kind].words, end.reason))
    known = [(failure, cause_of(failure.lines)) for failure in end.failures]
    own = [(failure, printed) for failure, printed in known if not printed.echo]
    ranks = {failure.node for failure, _ in own if failure.rank is not None}
    # A launcher ends because its rank did.
    own = [one for one in own if one[0].rank is not None or one[0].node not in ranks]
    if end.by == "lost" or (end.lost and not own):
        return JudgedCause("lost", "%s: %s" % (RULES["lost"].words, ", ".join(end.lost)), end.lost)
    if own:
        return _cause_of(*min(own, key=lambda one: one[0].at))
    if not known:
        return JudgedCause("exception", _words(RULES["exception"].words, end.reason))
    failure, printed = min(known, key=lambda one: one[0].at)
    return _named("connection", failure, printed.line)


def _cause_of(failure: Failure, printed: PrintedCause) -> JudgedCause:
    kind = printed.kind
    if failure.signal in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        kind = "host-memory" if failure.oom else "killed"
    elif not kind and failure.signal is not None:
        kind = "crashed"
    elif not kind and not printed.error and failure.exit_code == _USAGE:
        kind = "usage"
    elif not kind and not printed.error and failure.exit_code in _NOT_A_COMMAND:
        kind = "command"
    # What a rank printed before it was killed from outside has nothing to do with that.
    line = "" if kind in ("killed", "host-memory") else printed.line
    return _named(kind or "exception", failure, line)


def _named(kind: str, failure: Failure, line: str) -> JudgedCause:
    who = "the launcher" if failure.rank is None else "rank %d" % failure.rank
    if failure.signal is not None:
        how = "signal %d" % failure.signal
    else:
        how = "exit code %s" % failure.exit_code
    words = "%s (%s on %s, %s)" % (RULES[kind].words, who, failure.node, how)
    return JudgedCause(kind, _words(words, line), (failure.node,), line)


def _words(words: str, more: str) -> str:
    return "%s: %s" % (words, more[:_SHOWN]) if more else words


def _asked(end: AttemptEnd, limits: Restart) -> Optional[Asked]:
    """Return what the job's own rules say of an attempt; None: nothing."""
    codes = [
        each.exit_code if each.signal is None else _SIGNALS + each.signal for each in end.failures
    ]
    return asked_by(codes, limits, end.patterns)


def _since_progress(ends: Sequence[AttemptEnd], newest: Optional[Checkpoint]) -> List[AttemptEnd]:
    """Return the last attempts: after the last one that brought a newer checkpoint, and that one.

    Without such an attempt, all of them.
    """
    since: List[AttemptEnd] = []
    after = newest
    for end in reversed(ends):
        since.insert(0, end)
        if after is not None and after.newer_than(end.start):
            break
        after = end.start
    return since


def _limit(
    since: Sequence[AttemptEnd],
    limits: Restart,
    found: Agreement,
    rule: Optional[Rule],
) -> Optional[Decision]:
    """Return the end that a limit demands; `rule` is None if the job's own rule decides."""
    end = since[-1]
    fruitless = len(since) - 1
    if fruitless >= FRUITLESS:
        why = "%d restarts in a row brought no newer checkpoint" % fruitless
        return Decision("end", why, exit_code=NO_PROGRESS)
    if end.attempt > limits["max"]:
        return Decision("end", "attempt %d of %d was the last" % (end.attempt, limits["max"] + 1))
    why = found.why
    if not why and found.newest is None and end.start is not None:
        why = "%s, from which this attempt started, is not there" % end.start.path
    if why:
        return Decision("end", "%s: %s" % (NO_CHECKPOINT, why))
    return None if rule is None else _limit_of_cause(since, rule)


def _limit_of_cause(since: Sequence[AttemptEnd], rule: Rule) -> Optional[Decision]:
    """Return the end that the budget of a cause demands."""
    end = since[-1]
    cause = first_cause(end)
    if rule.repeats and len(since) > 1 and _same(cause, end, since[-2]):
        step = "" if end.step is None else " at step %d" % end.step
        return Decision("end", "the same%s as in the attempt before" % step)
    spent = sum(first_cause(one).kind == cause.kind for one in since)
    if spent > rule.budget:
        why = "restarts for this cause (%d) brought no newer checkpoint" % (spent - 1)
        return Decision("end", why, exit_code=NO_PROGRESS)
    return None


def _same(cause: JudgedCause, end: AttemptEnd, before: AttemptEnd) -> bool:
    """Tell whether two attempts failed in the same way at the same step; numbers may differ."""
    earlier = first_cause(before)
    lines = [re.sub(r"0x[0-9a-f]+|\d+", "#", one.line) for one in (cause, earlier)]
    return (
        cause.kind == earlier.kind
        and end.step == before.step
        and (lines[0] == lines[1] or cause.kind != "exception")
    )


def unfit_nodes(end: AttemptEnd, limits: Restart, checks: Checks) -> Dict[str, str]:
    """Return the nodes to leave out of the next attempt, each with why."""
    unfit: Dict[str, str] = {}
    cause = first_cause(end)
    if RULES[cause.kind].action == "without" and _asked(end, limits) is None:
        unfit.update(dict.fromkeys(cause.nodes, cause.words))
    unfit.update((node, RULES["lost"].words) for node in end.lost if node not in checks)
    unfit.update(dict.fromkeys(end.stuck, RULES["stuck"].words))
    for node, found in checks.items():
        reasons = [reason for reason in found.values() if reason]
        if reasons:
            unfit[node] = "; ".join(reasons)
    return unfit


def _wait(since: Sequence[AttemptEnd], seed: str, attempt: int) -> float:
    """Return how long to wait, jitter included."""
    end = since[-1]
    killed = [one for one in end.failures if one.rank is not None and one.signal is not None]
    alone = len(killed) == 1 and not end.lost and first_cause(end).kind == "killed"
    if alone and len(since) == 1:
        return 0.0
    usual = WAITS[len(since) - 1]  # of FRUITLESS restarts in a row
    drawn = random.Random("%s %d" % (seed, attempt)).uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
    return round(usual * drawn, 1)
