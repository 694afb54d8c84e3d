"""Reads what PyTorch's flight recorder wrote when a collective timed out, or when asked to.

Such a file is a pickle, and the user's own program wrote it: nothing that it names is imported.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import stat
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from clusterctl.node.checkpoints.torch_pickles import SafeUnpickler

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Each names the files but for the rank at their end."""
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
"""Names the pipes but for the rank and `.pipe`: what is written there makes NCCL's write."""
WRITE_SECONDS, POLL_SECONDS = 2.5, 0.02
"""A rank looks at its pipe once a second."""
BYTES_LIMIT = 32 * 1024 * 1024
"""A recorder of 2000 entries writes 3 MB."""
MOST, MOST_FRAMES, MOST_SIZES, MOST_RANKS = 64, 8, 8, 4096
_TEXT_LIMIT = 512


class _Plain(SafeUnpickler):
    """Reads dicts, lists, text and numbers alone."""

    def find_class(self, module: str, name: str) -> type:
        """Refuse every class."""
        raise pickle.UnpicklingError("a flight recorder names no class: %s.%s" % (module, name))


def collectives_of(environ: Mapping[str, str], rank: int, began: float) -> List[Dict[str, Any]]:
    """Return what a rank's recorder wrote since its run began; none if it wrote nothing readable.

    Args:
        environ: of the rank, at least its home and what the job sets.
        began: when the run began, by this node's clock.
    """
    path = find_file(environ, rank, began)
    try:
        return read_collectives(path) if path else []
    except (OSError, ValueError):
        return []  # it may still be written


class Pending(NamedTuple):
    """A rank that was asked to write its recorder's file."""

    rank: int
    environ: Mapping[str, str]
    began: float
    before: Tuple[str, int]
    moment: float
    """When it was asked, by this node's clock: ranks write at different times within a second."""
    until: float


def request_all(
    environs: Mapping[int, Mapping[str, str]], began: Mapping[int, float]
) -> List[Pending]:
    """Ask all ranks that listen for it to write their recorders' files; return those.

    `began`: when the run of each began, by this node's clock.
    """
    moment, until = time.time(), time.monotonic() + WRITE_SECONDS
    found = []
    for rank, environ in environs.items():
        known = _written(environ, rank, began[rank])
        if _write_to_pipe(environ, rank):
            found.append(Pending(rank, environ, began[rank], known, moment, until))
    return found


def _write_to_pipe(environ: Mapping[str, str], rank: int) -> bool:
    """Tell whether a process of this user's reads the rank's pipe, and was asked."""
    path = "%s%d.pipe" % (environ.get(PIPE, ""), rank)
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    if not os.path.isabs(path):
        return False
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return False
        descriptor = os.open(path, flags)
    except OSError:
        return False  # no process reads it
    try:
        known = os.fstat(descriptor)
        own = stat.S_ISFIFO(known.st_mode) and known.st_uid == os.geteuid()
        return own and os.write(descriptor, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)


def answers_of(pending: Sequence[Pending]) -> Dict[int, List[Dict[str, Any]]]:
    """Wait for these files, for a while; return what is in those that came, by rank."""
    found: Dict[int, List[Dict[str, Any]]] = {}
    while True:
        for one in pending:
            answer = None if one.rank in found else _answer_of(one)
            if answer is not None:
                found[one.rank] = answer
        if len(found) == len(pending) or time.monotonic() >= pending[0].until:
            return found
        time.sleep(POLL_SECONDS)


def _answer_of(one: Pending) -> Optional[List[Dict[str, Any]]]:
    """Return what is in a file that was not there before; None: it is not whole yet."""
    known = _written(one.environ, one.rank, one.began)
    try:
        return None if known == one.before else read_collectives(known[0], one.moment)
    except (OSError, ValueError):
        return None


def _written(environ: Mapping[str, str], rank: int, began: float) -> Tuple[str, int]:
    """Return a rank's file, and when it was last written."""
    path = find_file(environ, rank, began)
    try:
        return (path, os.stat(path).st_mtime_ns) if path else ("", 0)
    except OSError:
        return "", 0


def find_file(environ: Mapping[str, str], rank: int, began: float) -> Optional[str]:
    """Return the file that a rank's recorder wrote since its run began, by this node's clock."""
    named = [environ[name] for name in VARIABLES if environ.get(name)]
    # Torch 2.7 and later, then earlier ones.
    home = environ.get("HOME")
    defaults = [home + "/.cache/torch/comm_lib_trace_rank_"] if home else []
    # An earlier torch does not know the first variable, which clusterctl sets.
    for prefix in [*named, *defaults, "/tmp/nccl_trace_rank_"]:  # noqa: S108
        path = "%s%d" % (prefix, rank)
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if _is_own(found) and found.st_mtime >= began:
            return path
    return None


def read_collectives(path: str, moment: float = math.inf) -> List[Dict[str, Any]]:
    """Return the collectives of a file until a moment as `Collective` has them, the newest first.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no flight recorder's.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        known = os.fstat(descriptor)
        if not _is_own(known) or known.st_size > BYTES_LIMIT:
            raise ValueError("%s is no file of this user's, or larger than any" % path)
        try:
            return _collectives(_Plain(file).load(), moment)
        except OSError:
            raise
        except Exception as error:  # whatever a pickle can do wrong
            raise ValueError("%s is no flight recorder's: %s" % (path, error)) from error


def _is_own(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _collectives(told: Mapping[str, Any], moment: float) -> List[Dict[str, Any]]:
    entries = [
        one
        for one in told["entries"]
        if not one.get("is_p2p") and one.get("time_created_ns", 0) / 1e9 <= moment
    ]
    entries.sort(key=lambda one: int(one["record_id"]), reverse=True)
    status, members = told.get("pg_status") or {}, told.get("pg_config") or {}
    found: List[Dict[str, Any]] = []
    groups: Set[str] = set()
    for entry in entries:
        group = _group(entry)
        # The newest of each group: without it, a rank would seem never to have entered one.
        if len(found) >= MOST and (group in groups or len(found) >= 2 * MOST):
            continue
        one = _collective(entry, status)
        if group not in groups:  # once a group: the ranks of a thousand nodes are many
            one["ranks"] = _members(entry, members)
        groups.add(group)
        found.append(one)
    return found


def _collective(entry: Mapping[str, Any], status: Mapping[str, Any]) -> Dict[str, Any]:
    name, sequence = _text(entry["profiling_name"]), _count(entry["collective_seq_id"])
    done = status.get(str(entry.get("pg_id")), {}).get("last_completed_collective", -1)
    # Gloo's never leave `scheduled`.
    completed = entry["state"] == "completed" or entry.get("retired") or sequence <= int(done)
    started = entry["state"] == "started"
    return {
        "group": _group(entry),
        "sequence": sequence,
        "operation": name.rpartition(":")[2],
        "input_sizes": [
            [_count(n) for n in one[:MOST_SIZES]]
            for one in (entry.get("input_sizes") or [])[:MOST_SIZES]
        ],
        "dtype": _text((entry.get("input_dtypes") or [""])[0]),
        "state": "completed" if completed else "started" if started else "scheduled",
        "frames": [
            {
                "function": _text(frame["name"]),
                "file": _text(frame["filename"]),
                "line": _count(frame["line"]),
            }
            for frame in (entry.get("frames") or [])[:MOST_FRAMES]
        ],
        "ranks": [],
    }


def _group(entry: Mapping[str, Any]) -> str:
    name, description = _pair(entry["process_group"])
    return name if description in ("", "undefined") else "%s (%s)" % (name, description)


def _pair(group: Any) -> Tuple[str, str]:  # noqa: ANN401  (a tuple, or a list)
    return _text(group[0]), _text(group[1])


def _text(told: object) -> str:
    """Return the end of a text, as UTF-8 can hold it."""
    return str(told)[-_TEXT_LIMIT:].encode("utf-8", "replace").decode("utf-8")


def _count(told: Any) -> int:  # noqa: ANN401  (a number)
    """Return a number as a dump may hold it; raise ValueError for others."""
    count = int(told)
    if not 0 <= count < 1 << 53:
        raise ValueError("no count: %d" % count)
    return count


def _members(entry: Mapping[str, Any], config: Mapping[str, Any]) -> List[int]:
    """Return the ranks of an entry's group; none if that is not told."""
    name, _ = _pair(entry["process_group"])
    told = config.get(name) or (next(iter(config.values())) if len(config) == 1 else {})
    try:
        ranks = json.loads(told.get("ranks") or "[]")
    except ValueError:
        return []
    return [rank for rank in map(_count, ranks[:MOST_RANKS]) if rank <= 1 << 20]
