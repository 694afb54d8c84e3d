"""Choose the checkpoint to resume from: of this history, complete, and the same on every node.

First every node says what it sees, quickly; then the one chosen is read to its last byte, by one
node if it is on shared storage, by every node if not.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.model.checkpoint import NodeCheckpoint
from clusterctl.node.checkpoints.copies import Unfit, copy_hint, rivals
from clusterctl.values import dataclass
from clusterctl.verbs.checkpoints.candidates import (
    Candidates,
    Copies,
    as_copies,
    one_of_each,
    path_for_job,
    require_fit,
    split_by_history,
)
from clusterctl.verbs.checkpoints.other_runs import with_other_runs
from clusterctl.verbs.checkpoints.query import LATEST, CheckpointQuery, ChosenCheckpoint
from clusterctl.verbs.events import Emit
from clusterctl.verbs.rpc import Nodes
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.history import History

_SHOWN, _MOST_SKIPPED = 3, 20
"""Checkpoints of other histories, and unfit ones, that a message shows."""
_HINT_SILENCE = 3.0
"""Seconds for a second look that only serves a hint."""


def choose_checkpoint(
    nodes: Nodes,
    cluster: Cluster,
    which: str,
    *,
    history: History,
    ranks: Mapping[str, Sequence[int]] | None = None,
    emit: Emit,
) -> ChosenCheckpoint:
    """Choose `latest` or a path.

    Args:
        nodes: where it must be.
        cluster: the nodes of the run to come, and the job that says where checkpoints lie.
        which: `latest`, or a path: absolute, or relative to workdir or the checkpoints' folder.
        history: the run to resume, and those that it resumes: `latest` is one of theirs.
        ranks: node → the ranks that it will run, if that is known.

    Raises:
        LaunchRefused: there is none, the path asked for is unfit, or a node did not answer.
        UsageError: `which` is empty.
    """
    require_word(which)
    query = CheckpointQuery(
        nodes=nodes, cluster=cluster, history=history, ranks=ranks or {}, emit=emit
    )
    for _ in nodes.open():
        pass  # before the nodes get the time here
    if which == LATEST:
        if not cluster.job.checkpoints:
            raise LaunchRefused(
                "latest: expected the job's checkpoint folder, found none in the inventory",
                hint="set `checkpoints:` under `job:`, or name a path: --checkpoint PATH",
                by="checkpoint",
            )
        query = replace(query, history=with_other_runs(nodes, cluster, history))
        return _latest(query, query.folders)
    try:
        seen = one_of_each(query.ask(which=which))
        chosen = query.prove(seen)
        return replace(chosen, doubts=(*chosen.doubts, *_of_another(seen, history)))
    except Unfit as unfit:
        hint = _to_these(query, unfit.hint) or _hint(query, which)
        raise LaunchRefused(f"checkpoint {which}: {unfit}", hint=hint, by="checkpoint") from unfit


def _of_another(seen: Copies, history: History) -> list[str]:
    """Return which other run wrote a checkpoint that was named, if that is known."""
    runs = {run.run for run in history.runs}
    others = {one.run: one.recorded for one in seen.values() if one.run and one.run not in runs}
    return [
        f"{writer} {'wrote it' if recorded else 'ran when it was written'},"
        f" and {history.run} does not resume that run"
        for writer, recorded in sorted(others.items())
    ]


def _to_these(query: CheckpointQuery, hint: str) -> str:
    """Return the hint; a `push` in it leaves out what this resume does, which may be down."""
    out = fold_hosts(node.name for node in query.cluster.left_out)
    return f"{hint} --exclude {shlex.quote(out)}" if out and "clusterctl push " in hint else hint


def require_word(which: str) -> None:
    """Raise UsageError for an empty word, which a variable that is not set leaves."""
    if not which.strip():
        raise UsageError(
            "--checkpoint: expected `latest` or a path, found an empty word",
            hint="is the variable in it set? --checkpoint latest takes the newest of the run",
        )


def _latest(query: CheckpointQuery, folders: Sequence[str]) -> ChosenCheckpoint:
    """Choose the newest of the first folder that has a fit one; the newest run's comes first."""
    skipped: list[str] = []
    refusal: LaunchRefused | None = None
    begin = query.history.begin
    to_copy = how = ""
    for folder in folders:
        found = query.ask(path=folder)
        ours, others = split_by_history(found, query.knows, query.cluster, query.history)
        unfit_here: list[str] = []
        hint = ""
        # Without one of its own, the run is where it began.
        own = [query.history.has_written(seen.values()) for _, seen in ours]
        if begin and not all(own):
            ours.insert(own.index(False), (begin, one_of_each(query.ask(which=begin))))
            begin = ""
        for name, seen in ours:
            try:
                _require_one_save(seen, _resume_command(query, folder, name))
                chosen = query.prove(seen)
            except Unfit as unfit:
                unfit_here.append(f"{name}: {unfit}")
                hint = hint or _to_these(query, unfit.hint)
                if hint and not to_copy:
                    to_copy, how = unfit_here[-1], hint
                continue
            if not to_copy:
                to_copy, how = _on_nodes_left_out(query, folder, found, chosen)
            if to_copy:  # the work since the older one would be lost
                older = f"to take {name} instead: {_resume_command(query, folder, name)}"
                raise LaunchRefused(to_copy, hint=f"{how}\n{older}", by="checkpoint")
            told = [(one, as_copies(copies)) for one, copies in ours]
            newer = [*_newer(found, others, chosen.step), *rivals(told, name)]
            return replace(
                chosen,
                skipped=(*skipped, *unfit_here, *_damaged(found, others, chosen.step)),
                others=_with_commands(query, folder, newer),
                more_others=max(0, len(newer) - 1),
            )
        if not to_copy:
            to_copy, how = _on_nodes_left_out(query, folder, found, None)
            unfit_here += [to_copy] if to_copy else []
            hint = hint or how
        # A node that lacks the folder lacks them all, and none is taken.
        why = _no_checkpoint(query, folder, found, _errors(found) + unfit_here, others, hint)
        refusal = refusal or why
        skipped += unfit_here
    assert refusal is not None
    raise refusal


def _on_nodes_left_out(
    query: CheckpointQuery, folder: str, found: Candidates, chosen: ChosenCheckpoint | None
) -> tuple[str, str]:
    """Return what is newer on a node that the resume leaves out, and how it is copied."""
    left_out = query.left_out(folder)
    if not left_out:
        return "", ""
    everywhere = {**found, **left_out}
    for name, seen in split_by_history(everywhere, {}, query.cluster, query.history)[0]:
        whole = {
            node: one
            for node, one in seen.items()
            if node in left_out and one.complete and not one.part
        }
        newest = next(iter(whole.values()), None)
        if newest is None:
            continue
        if chosen and (chosen.step is None or (newest.step or 0) <= chosen.step):
            break
        where = fold_hosts(whole)
        hint = _to_these(query, copy_hint(as_copies(whole)))
        return f"{name}: it is on {where}, which this resume leaves out", hint
    return "", ""


def _require_one_save(seen: Copies, command: str) -> None:
    """Raise Unfit for what may be of two saves: it is taken only if named."""
    for one in seen.values():
        if one.mixed:
            raise Unfit(f"{one.mixed}; {command} takes it")


def _no_checkpoint(
    query: CheckpointQuery,
    folder: str,
    found: Candidates,
    skipped: list[str],
    others: list[tuple[str, str]],
    hint: str,
) -> LaunchRefused:
    """Say that there is none of this history, and how one of another is taken."""
    run = query.history.run
    if skipped or not others:
        more = [f"and {len(skipped) - _MOST_SKIPPED} more"] if len(skipped) > _MOST_SKIPPED else []
        told = (*skipped[:_MOST_SKIPPED], *more, *_with_commands(query, folder, others))
        why = "\n".join(told) or "it holds none"
        message = f"no complete checkpoint of {run} in {folder}: {why}"
        return LaunchRefused(message, hint=hint or None, by="checkpoint")
    whys = [f"{name}: {why}" for name, why in others[:_SHOWN]]
    if len(others) > _SHOWN:
        whys.append(f"and {len(others) - _SHOWN} more")
    return LaunchRefused(
        f"no checkpoint of {run} in {folder}; " + "; ".join(whys),
        hint=_offer(query, folder, others, found),
        by="checkpoint",
    )


def _offer(
    query: CheckpointQuery, folder: str, others: Sequence[tuple[str, str]], found: Candidates
) -> str | None:
    """Return the commands for the newest one that looks complete; None: there is none.

    The run that wrote it can be resumed; to take it for this run, it must be named.
    """
    whole = {
        one.name: one.run
        for candidates in found.values()
        for one in candidates
        if one.complete or one.part
    }
    name = next((name for name, _ in others if name in whole), None)
    if name is None:
        return None
    named = f"to take {name} for this run: {_resume_command(query, folder, name)}"
    # Nodes may disagree on who wrote it.
    own = whole[name] == query.history.run
    if own or run_id.cluster_of(whole[name]) != query.cluster.name:
        return named
    writer = f"clusterctl resume {whole[name]} --checkpoint latest"
    return f"to resume the run that wrote it: {writer}\n{named}"


def _newer(
    found: Candidates, others: list[tuple[str, str]], limit: int | None
) -> list[tuple[str, str]]:
    """Return those of other histories that a user might have expected to be taken."""
    steps = {
        one.name: one.step
        for candidates in found.values()
        for one in candidates
        if one.complete or one.part
    }
    return [
        (name, why)
        for name, why in others
        if name in steps and (limit is None or (steps[name] or 0) > limit)
    ]


def _damaged(found: Candidates, others: list[tuple[str, str]], limit: int | None) -> list[str]:
    """Return those further on that are not whole and that no other run is known to have written.

    A file that was changed after the run's end has a time at which no run wrote.
    """
    whys = dict(others)
    seen = {one.name: one for node in [*found][::-1] for one in found[node]}
    return [
        f"{name}: {whys[name]}; {one.why}"
        for name, one in seen.items()
        if name in whys
        and not (one.complete or one.part or one.run or one.older or one.beside)
        and (limit is None or (one.step or 0) > limit)
    ]


def _with_commands(
    query: CheckpointQuery, folder: str, others: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    return tuple(
        f"{name}: {why}; {_resume_command(query, folder, name)} takes it"
        for name, why in others[:_SHOWN]
    )


def _resume_command(query: CheckpointQuery, folder: str, name: str) -> str:
    path = str(PurePosixPath(folder) / name)
    return f"clusterctl resume {query.history.run} --checkpoint {shlex.quote(path)}"


def _hint(query: CheckpointQuery, which: str) -> str:
    """Name the newest complete one in addition to a path that was refused."""
    folder = str(PurePosixPath(which).parent)
    history = with_other_runs(query.nodes, query.cluster, query.history)
    quick = replace(query, silence=_HINT_SILENCE, history=history)
    for places in dict.fromkeys((query.folders or (folder,), (folder,))):
        try:
            chosen = _latest(quick, places)
        except LaunchRefused:
            continue
        return f"the newest complete one: --checkpoint {shlex.quote(chosen.path)}"
    return "no other checkpoint of this run is complete"


def _errors(found: Candidates) -> list[str]:
    """Return what nodes say that could not even list the folder."""
    return [
        f"{node}: {one.why}"
        for node, candidates in found.items()
        for one in candidates
        if not one.name
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCheckpoint:
    """A checkpoint of a run, by a quick look at its files on every node."""

    name: str
    path: str
    """As the job is given it; on the first node that has it, if no one path leads to it on all."""
    step: int | None
    time: float
    """When it was written: seconds since 1970, by its node's clock."""
    format: str
    why: str = ""
    """Why it cannot be resumed from; empty: it looks complete, and the same on every node."""

    @property
    def complete(self) -> bool:
        """It looks complete, and the same on every node."""
        return not self.why


def list_checkpoints(
    nodes: Nodes, cluster: Cluster, history: History, *, emit: Emit
) -> tuple[ListedCheckpoint, ...]:
    """List a history's checkpoints, the newest first, unread; LaunchRefused for a silent node."""
    if not cluster.job.checkpoints:
        return ()
    history = with_other_runs(nodes, cluster, history)
    query = CheckpointQuery(nodes=nodes, cluster=cluster, history=history, ranks={}, emit=emit)
    listed = []
    for folder in query.folders:
        found = query.ask(path=folder)
        ours, _ = split_by_history(found, query.knows, cluster, history)
        listed += [_listed_checkpoint(name, seen, cluster) for name, seen in ours]
    return tuple(listed)


def _listed_checkpoint(name: str, seen: Copies, cluster: Cluster) -> ListedCheckpoint:
    first = next(iter(seen.values()))
    path, why = first.path, ""
    try:
        require_fit(seen, cluster)
        path = path_for_job(seen, cluster)
    except Unfit as unfit:
        why = str(unfit)
    return ListedCheckpoint(
        name=name,
        path=path,
        step=first.step,
        time=first.time,
        format=first.format,
        why=why,
    )


def newest_complete(
    found: Candidates, knows: Mapping[str, bool], cluster: Cluster, history: History
) -> NodeCheckpoint | None:
    """Return what `latest` would take, by a quick look at some of the nodes; None: nothing."""
    for _, seen in split_by_history(found, knows, cluster, history)[0]:
        one = next(iter(seen.values()))
        if not one.mixed and (one.complete or one.part):
            return one
    return None
