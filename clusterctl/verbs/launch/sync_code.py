"""The step of a launch that mirrors the code into every node's workdir."""

from pathlib import Path

from clusterctl.errors import LaunchRefused, SyncRefused
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.transport.pool import Pool
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Event, Notice
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.preflight.source_folder import other_tree
from clusterctl.verbs.sync.result import SyncOptions, SyncResult
from clusterctl.verbs.sync.sync import sync

_SHOWN_PATHS = 3
"""Files that the warning about changed code names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced(Event):
    """The code is on every node."""

    kind = "sync"

    synced: SyncResult


def sync_code(
    cluster: Cluster, pool: Pool, options: LaunchOptions, *, emit: Emit
) -> SyncResult | None:
    """Mirror the code, and say where it is not what the resumed run had; None: it is not synced."""
    if not options.sync:
        _warn_of_other_code(cluster, pool, options, emit=emit)
        return None
    if not any(node.workdir for node in cluster.nodes):
        text = "no workdir in the inventory: no code is synced, the job starts in the home folder"
        emit(Notice(text=text, level="warning"))
        return None
    sync_options = SyncOptions(
        delete=options.delete,
        command=cluster.job.command,
        launching=True,
        may_copy=options.may_copy,
    )
    try:
        synced = sync(cluster, pool, options.source, sync_options, emit=emit)
    except SyncRefused as error:
        raise LaunchRefused(str(error), hint=error.hint, by="sync") from error
    emit(Synced(synced=synced))
    if not synced.ok:
        failed = [f"{node.node}: {node.words}" for node in synced.nodes if not node.ok]
        hint = next((node.hint for node in synced.nodes if node.hint), None)
        message = "the code is not on every node:\n" + "\n".join(failed)
        raise LaunchRefused(message, hint=hint, by="sync")
    before = options.resumed and options.resumed.tree
    if before and before != synced.tree and _changed(synced) != [Path(cluster.file).name]:
        then = options.resumed and options.resumed.commit
        now = f"{synced.commit or 'no commit'}{' with changes' if synced.dirty else ''} now"
        commits = f"{then or 'no commit'} then, {now}"
        known = f": {commits}" if then or synced.commit else ""
        text = f"the code differs from that of the run{known}{_synced_now(synced)}"
        emit(Notice(text=text, level="warning"))
    return synced


def _warn_of_other_code(
    cluster: Cluster, pool: Pool, options: LaunchOptions, *, emit: Emit
) -> None:
    """Warn of code that another sync has placed since the resumed run; no sync replaces it."""
    before = options.resumed
    if before is not None and before.tree:
        other = other_tree(pool, cluster.nodes, before.tree)
        names = fold_hosts(node.name for node in cluster.nodes if node.name in other)
        text = f"{names}: workdir has other code than {before.run} had, and nothing is synced"
        hint = "leave out --no-sync: then it gets the code of this folder"
        if names:
            emit(Notice(text=text, hint=hint, level="warning"))


def _changed(synced: SyncResult) -> list[str]:
    """Return the first files that differed on the nodes until now."""
    changed = [(*node.sent_paths, *node.deleted_paths) for node in synced.nodes]
    return [*dict.fromkeys(path for paths in changed for path in paths)]


def _synced_now(synced: SyncResult) -> str:
    """Return which files differed on the nodes until now: ` (just synced: hosts.yaml)`."""
    shown = _changed(synced)[:_SHOWN_PATHS]
    if not shown:
        return ""
    most = max(node.sent + node.deleted for node in synced.nodes)
    more = ", …" if most > len(shown) else ""
    return f" (just synced: {', '.join(shown)}{more})"
