"""What a session does on the nodes, apart from runs: a method for each command."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

from clusterctl.api.flags import agreement, folder, ids_of
from clusterctl.api.pools import Pools
from clusterctl.api.run import OnEvent, log_warning
from clusterctl.errors import LargeCopy, UsageError
from clusterctl.inventory import default_path, load, select
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.select import named
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.verbs.runs.records import Records

if TYPE_CHECKING:
    import fabric

    from clusterctl.api.report import CheckReport
    from clusterctl.transport.pool import Pool
    from clusterctl.verbs.exec import ExecResult
    from clusterctl.verbs.notify import NotifyResult
    from clusterctl.verbs.pull.result import PullResult
    from clusterctl.verbs.push.result import PushResult
    from clusterctl.verbs.quarantine.quarantine import QuarantineList
    from clusterctl.verbs.setup.setup import SetupResult
    from clusterctl.verbs.sync.result import SyncResult


class NodeCommands:
    """The inventory, the connections to its nodes, and what can be done on them."""

    def __init__(
        self,
        inventory: str | os.PathLike[str] | Cluster | None = None,
        *,
        accept_new: bool = False,
        fanout: int | None = None,
    ) -> None:
        """Read the inventory; nothing is connected yet.

        Args:
            inventory: a hosts.yaml or hostfile; None: $CLUSTERCTL_INVENTORY, else ./hosts.yaml.
            accept_new: record the keys of hosts that are not known yet.
            fanout: the most logins and starts at once; None: as many as answer in time.

        Raises:
            InventoryError: the file is missing or has problems.
            UsageError: Slurm chooses the nodes, and this process is in no allocation.
        """
        if isinstance(inventory, Cluster):
            self.cluster = inventory
        else:
            self.cluster = load(default_path() if inventory is None else Path(inventory))
        if not self.cluster.nodes:
            raise UsageError(
                "nodes: expected those of a Slurm allocation, found none in this shell",
                hint="salloc --nodes 2, then the same command in its shell; or outside of an"
                " allocation: clusterctl launch --launcher slurm",
            )
        self._records = Records()
        self._pools = Pools(self.cluster, accept_new=accept_new, fanout=fanout)

    def __repr__(self) -> str:
        return f"<Session {self.cluster.name}: {len(self.cluster.nodes)} nodes>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; runs live on."""
        self._pools.close()

    def check(
        self,
        *,
        nodes: str | int | None = None,
        exclude: str | None = None,
        workdir: str | None = None,
        only: str | Sequence[str] = (),
        skip: str | Sequence[str] = (),
        deep: bool = False,
        strict: bool = False,
        facts: str | os.PathLike[str] | None = None,
        on_event: OnEvent | None = None,
    ) -> CheckReport:
        """Find what would break a run.

        Args:
            nodes: only these: names and ranges, or the first so many.
            exclude: not these.
            workdir: instead of the inventory's.
            only: ids of checks, or areas of them such as `network`.
            skip: all but these.
            deep: let the job's torch try the GPUs and the network too.
            strict: a warning counts as a failure.
            facts: a file that `check --save-facts` wrote, to judge instead of the nodes.
            on_event: called with each event while it runs.

        Raises:
            UsageError: the nodes or checks asked for are not there.
        """
        from clusterctl.api.report import CheckReport
        from clusterctl.verbs.preflight.check import CheckOptions, check, judge
        from clusterctl.verbs.preflight.facts_file import load_facts
        from clusterctl.verbs.preflight.last_good import compare_with_last_good
        from clusterctl.verbs.quarantine.quarantine import known_or_warned

        cluster = self._select(nodes, exclude, Options(workdir=folder(workdir)))
        options = CheckOptions(
            only=ids_of(only),
            skip=ids_of(skip),
            strict=strict,
            deep=deep,
            quarantined=None if facts else known_or_warned(cluster, self._records.root),
            source=Path.cwd(),
        )
        if facts is not None:
            result = judge(cluster, load_facts(Path(facts)), options)
        else:
            result = check(cluster, self._pool(cluster), options, emit=on_event or log_warning)
            result = compare_with_last_good(result, self._records)
        return CheckReport(**{field.name: getattr(result, field.name) for field in fields(result)})

    def sync(
        self,
        *,
        nodes: str | int | None = None,
        exclude: str | None = None,
        workdir: str | None = None,
        delete: bool = False,
        yes: bool | Callable[[LargeCopy], bool] = False,
        on_event: OnEvent | None = None,
    ) -> SyncResult:
        """Mirror the current folder into every node's workdir.

        Args:
            nodes: only to these: names and ranges, or the first so many.
            exclude: not to these.
            workdir: instead of the inventory's.
            delete: also delete most of what was placed, or what the command needs.
            yes: copy however much there is; a function is asked.
            on_event: called with each event while it runs.

        Raises:
            SyncRefused: it would delete what may still be wanted, or copy more than 1 GB.
        """
        from clusterctl.verbs.sync.result import SyncOptions
        from clusterctl.verbs.sync.sync import sync

        cluster = self._select(nodes, exclude, Options(workdir=folder(workdir)))
        options = SyncOptions(delete=delete, command=cluster.job.command, may_copy=agreement(yes))
        return sync(cluster, self._pool(cluster), Path.cwd(), options, emit=on_event or log_warning)

    def exec(
        self,
        command: Sequence[str],
        *,
        nodes: str | int | None = None,
        exclude: str | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
    ) -> ExecResult:
        """Run a command on every node, without input; its words reach the program as they are.

        Args:
            command: a program and its arguments; no shell reads them.
            nodes: only on these: names and ranges, or the first so many.
            exclude: not on these.
            cwd: a folder on the nodes; None: the home.
            timeout: seconds until it is ended; None: no limit.
            on_event: called with each event, such as `Printed`.

        Raises:
            UsageError: there is no command.
        """
        from clusterctl.verbs.exec import ExecOptions, exec_command

        cluster = self._select(nodes, exclude)
        options = ExecOptions(cwd=cwd, timeout=timeout)
        return exec_command(self._pool(cluster), command, options, emit=on_event or log_warning)

    def notify_test(self, *, on_event: OnEvent | None = None) -> NotifyResult:
        """Let the master send a test to all that `job.notify` names.

        Args:
            on_event: called with each event while it runs.

        Raises:
            UsageError: there is no receiver, or a variable that is needed is not set here.
            ClusterError: the master does not answer.
        """
        from clusterctl.verbs.notify import notify_test

        master = self.cluster.with_nodes(self.cluster.nodes[:1])
        emit = on_event or log_warning
        return notify_test(master, self._pool(master), os.environ, emit=emit)

    def push(
        self,
        *paths: str,
        nodes: str | int | None = None,
        exclude: str | None = None,
        source: str | None = None,
        to: str | None = None,
        dry_run: bool = False,
        on_event: OnEvent | None = None,
    ) -> PushResult:
        """Bring models and data to nodes without shared storage, and verify them there.

        Args:
            *paths: files and folders, or `LOCAL:REMOTE`; none: the inventory's `needs`.
            nodes: only to these: names and ranges, or the first so many.
            exclude: not to these.
            source: the node that has them; None: this machine if it has, else one that has all.
            to: the folder on the nodes, relative to workdir; None: each at its own path.
            dry_run: only say what would be sent.
            on_event: called with each event while it runs.

        Raises:
            ClusterError: no node has a path, or the nodes' copies of it differ.
        """
        from clusterctl.transport.pool import Pool
        from clusterctl.verbs.push.push import push
        from clusterctl.verbs.push.result import PushOptions, this_machine

        cluster = self._select(nodes, exclude)
        if source is not None:
            source = named(self.cluster, source, option="--from")[0].name
        options = PushOptions(paths=paths, source=source, to=to, dry_run=dry_run)
        with Pool(this_machine(cluster)) as here:
            return push(cluster, self._pool(cluster), here, options, emit=on_event or log_warning)

    def pull(
        self,
        *paths: str,
        source: str | None = None,
        to: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        on_event: OnEvent | None = None,
    ) -> PullResult:
        """Bring files and folders of the nodes to this machine, and verify them.

        Args:
            *paths: on the nodes, relative to workdir; with `{run}` and `{name}` of the newest run.
            source: only from these: names and ranges; None: from all that have them.
            to: the folder here; None: `pulled` in the current one.
            overwrite: replace files there that have other contents.
            on_event: called with each event while it runs.

        Raises:
            UsageError: a path is none, or there is no such node.
        """
        from clusterctl.transport.pool import Pool
        from clusterctl.verbs.events import Notice
        from clusterctl.verbs.pull.pull import pull
        from clusterctl.verbs.pull.result import DEFAULT, PullOptions
        from clusterctl.verbs.push.result import this_machine

        cluster, emit = self.cluster, on_event or log_warning
        if source is not None:
            cluster = cluster.with_nodes(named(cluster, source, option="--from"))
        newest = next(self._records.newest_first(cluster.name), None)
        filled = tuple(map(newest.fill, paths)) if newest else paths
        if filled != paths:
            emit(Notice(text=f"of the newest run: {', '.join(filled)}"))
        folder = Path.cwd() / (DEFAULT if to is None else Path(to).expanduser())
        options = PullOptions(paths=filled, to=folder, overwrite=overwrite)
        with Pool(this_machine(cluster)) as here:
            return pull(cluster, self._pool(cluster), here, options, emit=emit)

    def setup(
        self,
        *,
        requirements: str | os.PathLike[str] | None = None,
        nodes: str | int | None = None,
        exclude: str | None = None,
        base: str | None = None,
        offline: bool = False,
        on_event: OnEvent | None = None,
    ) -> SetupResult:
        """Make the same virtual environment on every node, at the path of `python:`.

        Args:
            requirements: a file as pip reads it, or a pyproject.toml or uv.lock; None: the one in
                the current folder.
            nodes: only on these: names and ranges, or the first so many.
            exclude: not on these.
            base: the nodes' interpreter to make it with; None: python3.
            offline: send the wheels from this machine.
            on_event: called with each event while it runs.

        Raises:
            UsageError: there is no such file, or the inventory does not say where.
            ClusterError: a wheel cannot be downloaded.
        """
        from clusterctl.verbs.setup.requirements import read_requirements
        from clusterctl.verbs.setup.setup import SetupOptions, setup

        cluster = self._select(nodes, exclude)
        given = None if requirements is None else Path(requirements)
        wanted = read_requirements(given, Path.cwd())
        options = SetupOptions(base=base, offline=offline)
        return setup(self._pool(cluster), wanted, options, emit=on_event or log_warning)

    def quarantine(self) -> QuarantineList:
        """Return the nodes that are in quarantine on this machine.

        Raises:
            ClusterError: the file cannot be read.
        """
        from clusterctl.verbs.quarantine.quarantine import list_quarantine

        return list_quarantine(self.cluster, self._records.root)

    def quarantine_add(
        self, nodes: str, *, reason: str = "", seconds: float | None = None
    ) -> QuarantineList:
        """Put nodes into quarantine; return them.

        Args:
            nodes: names and ranges.
            reason: for those who read it later.
            seconds: how long; None: 7 days.

        Raises:
            UsageError: there is no such node.
            ClusterError: the file cannot be read or written.
        """
        from clusterctl.verbs.quarantine.entries import USUAL
        from clusterctl.verbs.quarantine.quarantine import add

        lasting = USUAL if seconds is None else seconds
        return add(self.cluster, nodes, self._records.root, reason=reason, seconds=lasting)

    def quarantine_remove(self, nodes: str) -> tuple[QuarantineList, tuple[str, ...]]:
        """Take nodes out of quarantine; return those, and the names of others that were not in.

        Args:
            nodes: names and ranges, also of nodes that the inventory no longer has.

        Raises:
            UsageError: there is no such node.
            ClusterError: the file cannot be read or written.
        """
        from clusterctl.verbs.quarantine.quarantine import remove

        return remove(self.cluster, nodes, self._records.root)

    def connection(self, node: str) -> fabric.Connection:
        """Return Fabric's connection to a node, over the session's.

        It opens when it is first used; using it raises `CouldNotTell` if the node cannot be
        reached. Closing it leaves the session's connection open. Each thread needs one of its own.

        Raises:
            UsageError: there is no such node, or `via: openssh` reaches it.
        """
        first, *others = named(self.cluster, node, option="connection")
        if others:
            names = ", ".join(one.name for one in (first, *others))
            raise UsageError(f"connection: expected one node, found {names}")
        return self._pool(self.cluster).connection(first.name)

    def group(
        self, *, nodes: str | int | None = None, exclude: str | None = None
    ) -> fabric.ThreadingGroup:
        """Return Fabric's group of connections: `run` runs a command on all nodes at once.

        Args:
            nodes: only these: names and ranges, or the first so many.
            exclude: not these.
        """
        cluster = self._select(nodes, exclude)
        pool = self._pool(cluster)
        connections = [pool.connection(node.name) for node in cluster.nodes]
        import fabric

        return fabric.ThreadingGroup.from_connections(connections)

    def _select(
        self, nodes: str | int | None, exclude: str | None, overrides: Options | None = None
    ) -> Cluster:
        """Return the nodes chosen, with what flags set instead of the inventory."""
        cluster = select(self.cluster, None if nodes is None else str(nodes), exclude)
        return cluster if overrides is None else effective(cluster, overrides)

    def _pool(self, cluster: Cluster) -> Pool:
        """Return the pool of these nodes for one command, over connections that are kept."""
        return self._pools.of(cluster)
