"""The records of runs on this machine: a cache; the folders on the nodes are the truth.

    <state>/<cluster>/<run>/
        record.json   what was launched, on which nodes, the code, the findings before
        dirty.diff    uncommitted changes of the code
        facts.json    what the check before the launch found on the nodes
        end.json      how it ended, once this machine knows

`<state>` is `$CLUSTERCTL_STATE`, else the user's state folder. Folders are 0700 and files 0600;
values of `env_from` are never stored.
"""

import json
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Self

from clusterctl.errors import ClusterError
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.from_json import DocumentError, from_json, type_hints
from clusterctl.model.node_run import Resumed
from clusterctl.model.quarantine import Quarantined
from clusterctl.model.run_record import RecordedPlan, RunEnd
from clusterctl.own_files import make_private, replace_file
from clusterctl.plan.options import Options
from clusterctl.plan.run_names import fill_text
from clusterctl.state_folder import ANOTHER_FOLDER, state_folder
from clusterctl.values import dataclass
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.run_id import pick_run, refuse_part
from clusterctl.wire import SCHEMA, plain

RECORD, BATCH = "record.json", "batch.json"
_BEGAN = re.compile(rb'"began": ([0-9]+(?:\.[0-9]+)?)')
_HEAD_BYTES = 1024
"""Of a record: its first keys tell when the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one node claims that a run's command is."""

    node: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What was launched."""

    run: str
    began: float
    """Seconds since 1970, UTC, by the controller's clock."""
    cluster: Cluster
    """The nodes that ran, the master first, and the job as it ran."""
    source: str = ""
    """The folder that was synced."""
    tree: str = ""
    """Hash of what was synced."""
    commit: str = ""
    dirty: bool = False
    plan: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Mapping[str, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the launch; a resume uses them again."""
    resumed: Resumed | None = None
    left_out: tuple[Quarantined, ...] = ()
    """The nodes that were left out because they are in quarantine."""
    by: str = ""
    """Who launched it: `user on host`; empty: not recorded."""
    discovered: bool = False
    """It was rebuilt from what the nodes claim, without a proof: none of that is to be launched."""
    claims: tuple[Claim, ...] = ()
    """Of a discovered run: the commands that its nodes claim."""

    def fill(self, text: str) -> str:
        """Return a text with `{run}` and `{name}` as this run has them."""
        return fill_text(text, self.run, str(self.options.get("name") or ""))

    @property
    def inventory(self) -> Path | None:
        """The inventory that it was launched with, if that is still there."""
        file = Path(self.source) / self.cluster.file
        return file if self.cluster.file and file.is_file() else None

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"schema": SCHEMA, **plain(self)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what `document` gave, this version or another one."""
        record: Self = from_json(cls, document, "record")
        if not record.cluster.nodes:
            raise ValueError("expected a run's record, found one without nodes")
        for name, hint in {**type_hints(Options), "name": str}.items():
            if record.options.get(name) is not None:
                from_json(hint, record.options[name], f"record.options.{name}")
        from_json(RecordedPlan, record.plan, "record.plan")
        return record._without_claims() if record.discovered else record

    def _without_claims(self) -> Self:
        """Drop what an earlier version took from the nodes as if it were known."""
        job = replace(self.cluster.job, command=())
        resumed = self.resumed and replace(self.resumed, command=())
        return replace(self, cluster=replace(self.cluster, job=job), options={}, resumed=resumed)


class Records:
    """The records under one folder."""

    def __init__(self, root: Path | None = None) -> None:
        """Use this folder; the first write creates it."""
        self.root = root or state_folder()

    def folder(self, cluster: str, run: str) -> Path:
        """Return the folder of a run's record."""
        return self.root / cluster / run

    def write(
        self, record: RunRecord, *, diff: str = "", facts: Mapping[str, Any] | None = None
    ) -> Path:
        """Write a record, and what `facts` gives back later; return its folder."""
        folder = self.folder(record.cluster.name, record.run)
        try:
            make_private(self.root, folder.parent, folder)
            if diff:
                write_private(folder / "dirty.diff", diff)
            if facts:
                write_private(folder / "facts.json", json.dumps(facts) + "\n")
            write_private(folder / RECORD, json.dumps(record.document(), indent=1) + "\n")
        except OSError as error:
            hint = getattr(error, "hint", "") or f"make it writable, or {ANOTHER_FOLDER}"
            message = f"cannot keep the run's record in {folder}: {error.strerror}"
            raise ClusterError(message, hint=hint) from error
        return folder

    def read(self, cluster: str, run: str) -> RunRecord | None:
        """Return a run's record; None if there is none, or it is damaged."""
        document = _read(self.folder(cluster, run) / RECORD)
        try:
            record = RunRecord.from_document(document) if document else None
        except ValueError:
            return None
        # Hints put the name into commands: it must be the folder's, and need no quotes.
        if record is None or (record.cluster.name, record.run) != (cluster, run):
            return None
        return record if run_id.is_word(run) else None

    def find(self, word: str, *, part: bool = True, prefer: str = "") -> RunRecord | None:
        """Return the record that a word means, as `resolve` has it; SeveralRuns if several."""
        run = self.resolve(word, part=part, prefer=prefer)
        return self.with_id(run) if run else None

    def with_id(self, run: str) -> RunRecord | None:
        """Return the record of the run with this very id."""
        if not run_id.is_word(run):
            return None
        found = (
            self.read(path.parent.parent.name, run) for path in self.root.glob(f"*/{run}/{RECORD}")
        )
        return next(filter(None, found), None)

    def resolve(self, word: str, *, part: bool = True, prefer: str = "") -> str | None:
        """Return the id of the run that is meant, also of a batch job that has not begun.

        No other record is read whole.

        Args:
            word: as `pick_run` has it.
            part: as `pick_run` has it.
            prefer: the cluster whose runs come first; of others no mere part counts.

        Raises:
            SeveralRuns: it is a part of several.
        """
        if run_id.is_word(word):
            for path in self.root.glob(f"*/{word}"):
                if (path / RECORD).is_file() or (path / BATCH).is_file():
                    return word
        known = self.with_part(word)
        own = {run: name for run, name in known.items() if run_id.cluster_of(run) == prefer}
        found = pick_run(word, own, part=part)
        return found or pick_run(word, known, part=part and not prefer)

    def with_part(self, word: str) -> dict[str, str]:
        """Return the runs that a word may mean, with their names; the newest is the first."""
        found: dict[str, tuple[float, str]] = {}
        wanted = word.encode("utf-8", "surrogateescape")
        for path in (*self.root.glob(f"*/*/{BATCH}"), *self.root.glob(f"*/*/{RECORD}")):
            run, data = path.parent.name, _bytes(path)
            # A name needs no escapes in JSON: what has the word in no place has it in no name.
            if not run_id.is_word(run) or (word not in run and wanted not in data):
                continue
            document = _parsed(data) or {}
            options = document.get("options")
            name = (options if isinstance(options, dict) else document).get("name")
            found[run] = (_began(data), name if isinstance(name, str) else "")
        newest_first = sorted(found, key=lambda run: (found[run][0], run), reverse=True)
        return {run: found[run][1] for run in newest_first}

    def to_resume(self, run: str | None, cluster: str) -> RunRecord:
        """Return the record of the run to resume: the one named, else the cluster's newest.

        Raises:
            SeveralRuns: the word is a mere part.
            ClusterError: there is none on this machine.
        """
        if run:
            record = self.find(run, part=False, prefer=cluster)
            if record is None:
                refuse_part(run, self.with_part(run))
            missing = f"run {run} has no record on this machine"
            if record is not None and cluster and run == record.options.get("name"):
                _require_cluster(record, cluster)
        else:
            record = next(self.newest_first(cluster), None)
            missing = f"no run of cluster {cluster} has a record on this machine"
        if record is None:
            hint = "rebuild the records from what the nodes know: clusterctl runs --discover"
            raise ClusterError(missing, hint=hint)
        return record

    def all(self, cluster: str | None = None) -> list[RunRecord]:
        """Return all records, or those of one cluster, the newest first."""
        return list(self.newest_first(cluster))

    def resumes_of(self, run: str) -> list[RunRecord]:
        """Return the records of the runs that were resumed from a run."""
        paths = [path for path in self._folders() if run.encode() in _bytes(path / RECORD)]
        found = (self.read(path.parent.name, path.name) for path in paths)
        return [one for one in found if one and one.resumed and one.resumed.run == run]

    def ids(self) -> list[str]:
        """Return the ids of all runs and batch jobs on this machine; none of them is read."""
        return [
            path.parent.name for name in (RECORD, BATCH) for path in self.root.glob(f"*/*/{name}")
        ]

    def newest_first(self, cluster: str | None = None) -> Iterator[RunRecord]:
        """Yield the records, the newest first; each is read whole when it is asked for."""
        folders = [path for path in self._folders() if cluster in {None, path.parent.name}]
        ages = {path: (_began(_bytes(path / RECORD, _HEAD_BYTES)), path.name) for path in folders}
        for path in sorted(folders, key=ages.__getitem__, reverse=True):
            record = self.read(path.parent.name, path.name)
            if record is not None:
                yield record

    def write_end(self, record: RunRecord, end: RunEnd | Mapping[str, Any]) -> None:
        """Record how a run ended; do nothing if its folder was deleted."""
        try:
            document = {"schema": SCHEMA, **plain(end)}
            document["ended"] = document.get("ended") or time.time()
            text = json.dumps(document, indent=1) + "\n"
            write_private(self.folder(record.cluster.name, record.run) / "end.json", text)
        except OSError:
            return

    def end(self, record: RunRecord) -> RunEnd | None:
        """Return how a run ended; None if this machine does not know."""
        document = _read(self.folder(record.cluster.name, record.run) / "end.json")
        try:
            end: RunEnd | None = from_json(RunEnd | None, document, "end")
        except DocumentError:
            return None
        return end

    def diff(self, record: RunRecord) -> str:
        """Return the uncommitted changes that a run was launched with; empty: none were kept."""
        path = self.folder(record.cluster.name, record.run) / "dirty.diff"
        return _bytes(path).decode("utf-8", "backslashreplace")

    def facts(self, record: RunRecord) -> dict[str, Any] | None:
        """Return the document of the facts that a launch was checked by; None: it was not kept."""
        return _read(self.folder(record.cluster.name, record.run) / "facts.json")

    def remove(self, cluster: str, run: str) -> None:
        """Delete the record of a run, if there is one."""
        folder = self.folder(cluster, run)
        if folder not in self._folders():
            return  # a name with `..` must not lead elsewhere
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise ClusterError(f"cannot delete {error.filename}: {error.strerror}") from error

    def _folders(self) -> list[Path]:
        return [path.parent for path in self.root.glob(f"*/*/{RECORD}") if path.is_file()]


def _require_cluster(record: RunRecord, cluster: str) -> None:
    """Refuse a name that only a run of another cluster has: this folder's code is not its own."""
    if record.cluster.name != cluster:
        name, found = record.options["name"], f"{record.run} of {record.cluster.name}"
        there = f"cd {shlex.quote(record.source)}, then the same command\n" if record.source else ""
        raise ClusterError(
            f"expected a run of {cluster} called {name}, found only {found}",
            hint=f"{there}by its id: clusterctl resume {record.run} --checkpoint latest",
        )


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by this user only."""
    replace_file(path, text.encode("utf-8", "surrogateescape"), sync=True)


def _read(path: Path) -> dict[str, Any] | None:
    return _parsed(_bytes(path))


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data.decode("utf-8"))
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _bytes(path: Path, count: int = -1) -> bytes:
    """Return a file's first bytes, by default all; none of one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def _began(data: bytes) -> float:
    """Return when the run of a record began: from its first keys; 0 if it is damaged."""
    found = _BEGAN.search(data, 0, _HEAD_BYTES)
    return float(found[1]) if found else 0.0
