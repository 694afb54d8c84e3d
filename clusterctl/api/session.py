"""A session: the commands about nodes, and here those about runs."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from clusterctl.api.flags import LaunchFlags, launch_options, lists_flags
from clusterctl.api.node_commands import NodeCommands
from clusterctl.api.run import LogLine, OnEvent, Run, log_warning
from clusterctl.errors import NodeError, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.select import named
from clusterctl.plan.effective import effective
from clusterctl.verbs.runs.records import RunRecord

if TYPE_CHECKING:
    from clusterctl.plan.plan import Plan
    from clusterctl.verbs.join.result import JoinResult
    from clusterctl.verbs.launch.options import LaunchOptions
    from clusterctl.verbs.runs.list_runs import RunList
    from clusterctl.verbs.runs.prune import Prunable, Pruned
    from clusterctl.verbs.runs.run_status import RunStatus


class Session(NodeCommands):
    """A cluster whose nodes stay connected: check it, launch on it, ask and stop its runs.

    Usable as a context manager, from several threads, and for days: a connection that broke is
    made again when it is next needed. Each method does what the command of its name does.
    """

    @lists_flags
    def launch(
        self,
        command: Sequence[str] = (),
        *,
        on_event: OnEvent | None = None,
        **flags: Unpack[LaunchFlags],
    ) -> Run:
        """Check, sync and start a job on every node; return once it is up.

        Args:
            command: the job's words, such as `["train.py", "--lr", "1e-4"]`; empty: those of the
                inventory.
            on_event: called with each event while it starts.
            **flags: as those of `clusterctl launch`.

        Raises:
            LaunchRefused: it was not started, or was ended again, and why.
            UsageError: the job or the flags cannot be launched.
        """
        return self._start(*self._to_launch(command, flags), on_event)

    @lists_flags
    def resume(
        self,
        run: str | None = None,
        *,
        checkpoint: str,
        command: Sequence[str] = (),
        on_event: OnEvent | None = None,
        **flags: Unpack[LaunchFlags],
    ) -> Run:
        """Launch a run's job again, from a checkpoint that is verified first.

        Args:
            run: its id or name, or the end of its id; None: the newest of the cluster.
            checkpoint: `latest`, a path, or the URL of a checkpoint in an object store.
            command: replaces the job's, with `{checkpoint}` in it.
            on_event: called with each event while it starts.
            **flags: as those of `clusterctl resume`; what is not given is as the run had it.

        Raises:
            LaunchRefused: the checkpoint is not complete, or the launch was refused.
            UsageError: nothing says how the job is given the checkpoint.
        """
        before = self._to_resume(run)
        return self._start(*self._resumed(before, checkpoint, command, flags, on_event), on_event)

    @lists_flags
    def plan(
        self,
        command: Sequence[str] = (),
        *,
        run: str | None = None,
        checkpoint: str | None = None,
        on_event: OnEvent | None = None,
        **flags: Unpack[LaunchFlags],
    ) -> Plan:
        """Return what `launch` would start, or with a checkpoint `resume`; nothing is changed.

        Args:
            command: as that of `launch` or `resume`.
            run: as that of `resume`.
            checkpoint: as that of `resume`.
            on_event: called with each event; `Checked` has the verdict.
            **flags: as those of `clusterctl launch --dry-run`.
        """
        from clusterctl.verbs.launch.launch import prepare

        if checkpoint is None:
            cluster, options = self._to_launch(command, flags)
        else:
            before = self._to_resume(run)
            cluster, options = self._resumed(
                before, checkpoint, command, flags, on_event, needs_secrets=False
            )
        _, plan, _ = prepare(cluster, self._pool(cluster), options, emit=on_event or log_warning)
        return plan

    def _to_resume(self, run: str | None) -> RunRecord:
        from clusterctl.verbs.runs.find_run import require_newest

        before = self._records.to_resume(run, self.cluster.name)
        if run is None:
            require_newest(self._pool(self.cluster), before, self._records)
        return before

    def join(
        self,
        run: str | None = None,
        *,
        nodes: str,
        force: bool = False,
        on_event: OnEvent | None = None,
    ) -> JoinResult:
        """Let nodes join a run: new ones, or ones that it has lost.

        Args:
            run: its id or name, or the end of its id; None: the only live one.
            nodes: names and ranges of the inventory.
            force: let them join in spite of checks that failed, and with other code.
            on_event: called with each event while they join.

        Raises:
            CouldNotTell: the run's master does not answer.
            ClusterError: the run is over, or there is none.
            UsageError: the inventory lacks a node, or a variable of `env_from` is not set.
        """
        from clusterctl.verbs.join.join import JoinOptions, join

        chosen = named(self.cluster, nodes, option="--nodes")
        known = self.run(run)
        record = known.record
        if known.cluster.name != self.cluster.name:
            raise UsageError(
                f"{known.id} is a run of cluster {known.cluster.name}, found the inventory of"
                f" {self.cluster.name}",
                hint=f"-i {shlex.quote(known.cluster.file)}" if known.cluster.file else None,
            )
        options = JoinOptions(
            source=Path(record.source) if record is not None and record.source else Path.cwd(),
            environment=os.environ,
            force=force,
        )
        return join(
            self.cluster,
            self._pool,
            known.id,
            known.cluster,
            chosen,
            options,
            self._records,
            emit=on_event or log_warning,
        )

    @overload
    def run(self, run: str | None = None, *, part: bool = False) -> Run: ...

    @overload
    def run(
        self,
        run: Callable[..., object],
        *args: object,
        on_line: Callable[[LogLine], object] = print,
        on_event: OnEvent | None = None,
        **flags: Unpack[LaunchFlags],
    ) -> list[Any]: ...

    def run(
        self,
        run: str | Callable[..., object] | None = None,
        *args: object,
        part: bool = False,
        on_line: Callable[[LogLine], object] = print,
        on_event: OnEvent | None = None,
        **flags: Unpack[LaunchFlags],
    ) -> Run | list[Any]:
        """Return a run; or run a function on every rank, and return what each returned, by rank.

        A function is a job of its own on the nodes and with the settings of the inventory. Ctrl-C
        stops it.

        Args:
            run: a function; or a run's id or name, or the end of its id; None: the only live one,
                else the newest.
            *args: of the function.
            on_line: called with each line that a rank of the function prints.
            on_event: called with each event of the function's run.
            **flags: of the function's run, as those of `clusterctl launch`.
            part: any part of an id or name is enough, if no other run has it; not for a run that
                is to be stopped.

        Raises:
            UsageError: it is a part of several, or a mere part; or a function or argument that
                cannot be sent.
            ClusterError: there is none, or several are live.
            FunctionFailed: a rank failed; with the traceback of the first cause.
            LaunchRefused: the function was not started, and why.
        """
        if callable(run):
            return self._call(run, args, flags, on_line=on_line, on_event=on_event or log_warning)
        if args or flags:
            raise TypeError(f"expected a function before its arguments, found {run!r}")
        from clusterctl.verbs.runs import find_run
        from clusterctl.verbs.runs.recorded_job import reached

        own = self.cluster.name
        record = self._records.find(run, part=part, prefer=own) if run else None
        if record is None:
            pool = self._pool(self.cluster)
            found = find_run.discover(pool)
            known = self._records.newest_first(self.cluster.name)
            if run:
                recorded = self._records.with_part(run)
                name = find_run.find_named(found, run, recorded, part=part)
            else:
                name = find_run.choose_run(found, known)
            record = self._records.read(self.cluster.name, name)
            if record is None:
                return self._run(name, find_run.nodes_of(found, name, self.cluster))
        return self._run(record.run, reached(record, self.cluster), record)

    def runs(self, *, discover: bool = False) -> RunList:
        """Return the runs of the cluster, the newest first.

        Args:
            discover: rebuild this machine's records from what the nodes know.
        """
        from clusterctl.verbs.launch.run_result import remember_seen
        from clusterctl.verbs.quarantine.quarantine import note_blame
        from clusterctl.verbs.runs.list_runs import runs

        def see(record: RunRecord, view: RunStatus) -> None:
            note_blame(record, view, self._records.root)
            remember_seen(self._records, record, view)

        return runs(self._pool(self.cluster), self._records, rebuild=discover, see=see)

    def live_runs(self) -> tuple[tuple[Run, ...], tuple[NodeError, ...]]:
        """Return the runs that live, and the nodes that could not be asked."""
        from clusterctl.verbs.runs import find_run

        found = find_run.discover(self._pool(self.cluster))
        runs = []
        for view in found.runs:
            if view.live:
                record = self._records.read(self.cluster.name, view.run)
                runs.append(
                    self._run(view.run, find_run.nodes_to_stop(view, self.cluster, record), record)
                )
        return tuple(runs), found.errors

    def prunable(
        self, *, keep: int, every: bool = False, only: Collection[str] | None = None
    ) -> Prunable:
        """Return what `prune` would delete, of all runs or `only` these ids; nothing is deleted."""
        from clusterctl.verbs.runs.prune import prunable

        pool = self._pool(self.cluster)
        return prunable(pool, self._records, keep=keep, every=every, only=only)

    def prune(self, *, keep: int, every: bool = False, plan: Prunable | None = None) -> Pruned:
        """Delete logs and records of all but the newest `keep` runs that have ended.

        Args:
            keep: how many of them stay.
            every: delete also runs with a name, and those that began less than a day ago.
            plan: what `prunable` returned: delete just that; None: find it.
        """
        from clusterctl.verbs.runs.prune import prune

        plan = plan or self.prunable(keep=keep, every=every)
        return prune(self._pool(self.cluster), self._records, plan)

    def _call(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        flags: LaunchFlags,
        *,
        on_line: Callable[[LogLine], object],
        on_event: OnEvent,
    ) -> list[Any]:
        from clusterctl.api.function_call import returned, script_of

        if flags.get("no_sync"):
            raise UsageError("no_sync: expected a sync, which brings the function to the nodes")
        token = secrets.token_hex(8)
        with script_of(function, args, Path.cwd(), token) as script:
            cluster, options = self._to_launch([script], flags)
            if not all(node.workdir for node in cluster.nodes):
                hint = "workdir: ~/code  # in the inventory"
                raise UsageError("no workdir: a function is sent with the code", hint=hint)
            run = self._start(cluster, options, on_event)
            return returned(run, token, on_line=on_line, on_event=on_event)

    def _to_launch(
        self, command: Sequence[str], flags: LaunchFlags
    ) -> tuple[Cluster, LaunchOptions]:
        options = launch_options(command, flags)
        cluster, options = self._choose(flags.get("nodes"), flags, options)
        return effective(cluster, options.overrides), options

    def _choose(
        self, nodes: str | int | None, flags: LaunchFlags, options: LaunchOptions
    ) -> tuple[Cluster, LaunchOptions]:
        """Select the nodes of a launch; the options tell which are in quarantine, or left out."""
        from clusterctl.verbs.quarantine import quarantine

        avoid = flags.get("exclude_quarantined") or self.cluster.avoid_quarantined
        look_up = quarantine.quarantined if avoid else quarantine.known_or_warned
        known = look_up(self.cluster, self._records.root)
        wanted = None if nodes is None else str(nodes)
        cluster, left_out = quarantine.choose(
            self.cluster,
            wanted,
            flags.get("exclude"),
            known if avoid and known else {},
            spares=options.overrides.spares is None,
        )
        return cluster, replace(options, quarantined=known, left_out=left_out)

    def _start(self, cluster: Cluster, options: LaunchOptions, on_event: OnEvent | None) -> Run:
        from clusterctl.verbs.launch.launch import launch
        from clusterctl.verbs.launch.wait_until_free import launch_when_free

        start = launch_when_free if options.wait else launch
        plan, record = start(
            cluster, self._pool(cluster), self._records, options, emit=on_event or log_warning
        )
        return self._run(plan.run, record.cluster, record, plan)

    def _resumed(
        self,
        before: RunRecord,
        checkpoint: str,
        command: Sequence[str],
        flags: LaunchFlags,
        on_event: OnEvent | None,
        *,
        needs_secrets: bool = True,
    ) -> tuple[Cluster, LaunchOptions]:
        """Choose the checkpoint; return what is to be launched, and on what."""
        from clusterctl.verbs.resume import resume
        from clusterctl.verbs.runs.history import history_of
        from clusterctl.verbs.runs.recorded_job import nodes_again, report_job

        find = self._records.with_id
        launch = launch_options(command, flags)
        nodes = flags.get("nodes")
        if nodes is None and not self.cluster.slurm_job:  # else all that Slurm gave this time
            nodes = nodes_again(before, self.cluster)
        cluster, launch = self._choose(nodes, flags, launch)
        if cluster.name == before.cluster.name and cluster.job != before.cluster.job:
            report_job(Path(cluster.file), before, cluster.job, launch.overrides, find)
        return resume(
            before,
            cluster,
            self._pool(cluster),
            launch,
            checkpoint=checkpoint,
            history=history_of(before, find),
            needs_secrets=needs_secrets,
            emit=on_event or log_warning,
        )

    def _run(
        self, run: str, cluster: Cluster, record: RunRecord | None = None, plan: Plan | None = None
    ) -> Run:
        return Run(
            run,
            cluster,
            pool=lambda: self._pool(cluster),
            records=self._records,
            record=record,
            plan=plan,
        )
