"""The history of a run: the run, those that it resumes, and the checkpoints between them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from clusterctl.inventory.cluster import Cluster, Job, Node
from clusterctl.model.checkpoint import NodeCheckpoint
from clusterctl.model.node_run import Resumed
from clusterctl.plan.command.output_folder import own_folder
from clusterctl.plan.run_names import fill_text
from clusterctl.values import dataclass
from clusterctl.verbs.rpc import run_args
from clusterctl.verbs.runs.records import Records, RunRecord

_SHOWN_RUNS = 3
_CLOCKS = 120.0
"""Seconds by which the controller's clock and that of the files may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A run of the history."""

    run: str
    began: float | None = None
    """By the controller's clock; None if this machine has no record of it."""
    world_size: int | None = None
    taken: str = ""
    """The checkpoint that this run was resumed from; empty if it was not resumed."""
    taken_step: int | None = None
    name: str = ""
    """The user's own name for it."""
    checkpoints: str = ""
    """As its job has the folder, before `{run}` is filled in; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run and the runs it resumes, the newest first; never empty."""

    runs: tuple[Ancestor, ...]
    others: tuple[Mapping[str, Any], ...] = ()
    """Runs that may write to the same folder from other nodes: `run`, `began`, `ended`, `live`."""

    @property
    def run(self) -> str:
        """The newest run."""
        return self.runs[0].run

    def folders(self, job: Job, name: str = "") -> tuple[str, ...]:
        """Return where each run writes its checkpoints, the newest run's folder first.

        Args:
            job: the newest run's, before `{run}` is filled in.
            name: the user's own name for that run, if this machine has no record of it.
        """
        first, *earlier = self.runs
        wide, own = job.checkpoints or "", first.checkpoints
        # A resume may be typed with another folder for what it writes.
        if not (wide and f"{own}/".startswith(f"{wide.rstrip('/')}/")):
            own = own_folder(job) or ""
        named = [(first, own), *((run, run.checkpoints) for run in earlier)]
        found = (fill_text(folder, run.run, run.name or name) for run, folder in named)
        return tuple(dict.fromkeys(filter(None, found)))

    @property
    def begin(self) -> str:
        """The checkpoint on disk that the newest run was resumed from; empty: there is none.

        It may be in no folder of these runs.
        """
        taken = self.runs[0].taken
        return "" if "://" in taken else taken

    def has_written(self, copies: Iterable[NodeCheckpoint]) -> bool:
        """Tell whether the newest run wrote a checkpoint, or was resumed from it."""
        newest = self.runs[0]
        return any(one.run == newest.run or _same(newest.taken, one.path) for one in copies)

    def args(self, cluster: Cluster, node: Node) -> dict[str, Any]:
        """Return the arguments by which a node tells which run wrote a checkpoint."""
        runs = [
            {"run": run.run, "began": run.began, "world_size": run.world_size} for run in self.runs
        ]
        told = {"ancestors": runs, "others": list(self.others), "now": time.time()}
        return {**run_args(self.run, cluster, node), **told}

    def objection(self, one: NodeCheckpoint, order: Sequence[NodeCheckpoint] = ()) -> str:
        """Return why a checkpoint is of another history; empty if it is of this one.

        Args:
            one: the checkpoint.
            order: all that the node has, the newest first.
        """
        trunk = self._trunk(order)
        taken_by = next((at for at in trunk if _same(self.runs[at].taken, one.path)), None)
        names = [run.run for run in self.runs]
        if (
            taken_by is not None
            and not self._is_rewritten(one, taken_by)
            and not self._left_at(one, self._after(trunk, taken_by), order)
        ):
            return ""
        writer = one.run
        if one.beside:
            runs = " and ".join(one.beside[:_SHOWN_RUNS])
            return f"{runs} ran at that time, and nothing says which wrote it"
        if writer not in names:
            verb = "wrote it" if one.recorded else "ran then"
            by = f" ({writer} {verb})" if writer else ""
            if one.older:
                return f"it was written before {self.run} began{by}"
            return f"{self.run} did not write it{by}"
        later = self._after(trunk, names.index(writer))
        if names.index(writer) not in trunk:
            taken = PurePosixPath(later[-1].taken).name
            return f"it is of {writer}, which {later[-1].run} left: it was resumed from {taken}"
        left_at = self._left_at(one, later, order)
        return f"it is of {writer}, which was resumed from {left_at}" if left_at else ""

    def _is_rewritten(self, one: NodeCheckpoint, place: int) -> bool:
        """Tell whether a file is no longer the one that a run was resumed from."""
        run = self.runs[place]
        if run.began is None or one.run in {older.run for older in self.runs[place + 1 :]}:
            return False
        return not one.older if place == 0 else one.time > run.began + _CLOCKS

    def _trunk(self, order: Sequence[NodeCheckpoint]) -> tuple[int, ...]:
        """Return the places of the runs that led to this one, the newest first.

        A run that takes a checkpoint which an older one wrote leaves those between them.
        """
        found = [0]
        while found[-1] + 1 < len(self.runs):
            taken, before = self.runs[found[-1]].taken, range(found[-1] + 1, len(self.runs))
            written = next((one.run for one in order if _same(taken, one.path)), "")
            # A folder of a run's own has its id.
            sources = (
                *(at for at in before if self.runs[at].run in taken),
                *(at for at in before if self.runs[at].run == written),
                before[0],
            )
            found.append(sources[0])
        return tuple(found)

    def _after(self, trunk: Sequence[int], place: int) -> list[Ancestor]:
        """Return the runs that led on from a run to this one, the newest first."""
        return [self.runs[at] for at in trunk if at < place]

    def _left_at(
        self, one: NodeCheckpoint, later: Sequence[Ancestor], order: Sequence[NodeCheckpoint]
    ) -> str:
        """Return where later runs left the history that a checkpoint is of; empty: after it."""
        steps = [run.taken_step for run in later if run.taken_step is not None]
        if steps and one.step is not None:
            return f"step {min(steps)}" if one.step > min(steps) else ""
        names = [run.run for run in later]
        paths = [each.path for each in order]
        older = order[paths.index(one.path) + 1 :] if one.path in paths else ()
        for each in older:
            # A file that they wrote again has another place in the order.
            if each.run not in names and any(_same(run.taken, each.path) for run in later):
                return each.name
        return ""


def history_of(record: RunRecord, find: Callable[[str], RunRecord | None]) -> History:
    """Follow the records from a run to the first that it resumes."""
    runs: list[Ancestor] = []
    known: RunRecord | None = record
    name = record.run
    while name and name not in {run.run for run in runs}:
        resumed = (known.resumed if known else None) or Resumed()
        began = known.began if known and not known.discovered else None
        size = dict(known.plan).get("world_size") if known else None
        runs.append(
            Ancestor(
                run=name,
                began=began,
                world_size=size,
                taken=resumed.checkpoint,
                taken_step=resumed.step,
                name=str(known.options.get("name") or "") if known else "",
                checkpoints=(own_folder(known.cluster.job) or "") if known else "",
            )
        )
        name = resumed.run
        known = find(name) if name else None
    return History(runs=tuple(runs))


def chain_of(record: RunRecord, records: Records) -> tuple[str, ...]:
    """Return the ids of a run's chain, the oldest first.

    Where two runs resume the same one, both are in it, in the order in which they began.
    """
    before = [one.run for one in history_of(record, records.with_id).runs]
    found = dict.fromkeys(reversed(before))
    after, pending = [], [record.run]
    while pending:
        resumes = [one for one in records.resumes_of(pending.pop()) if one.run not in found]
        found |= dict.fromkeys(one.run for one in resumes)
        after += resumes
        pending += [one.run for one in resumes]
    after.sort(key=lambda one: (one.began, one.run))
    return (*reversed(before), *(one.run for one in after))


def unrecorded(run: str) -> History:
    """Return the history of a run without a record."""
    return History(runs=(Ancestor(run=run),))


def _same(taken: str, path: str) -> bool:
    """Tell whether a path that was given to the job is this absolute one."""
    if not taken:
        return False
    return path == taken or (
        not taken.startswith("/") and PurePosixPath(path).match(taken.removeprefix("./"))
    )
