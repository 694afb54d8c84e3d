"""Proves that a run which nodes report is one that this machine launched.

The proof is made with a key that no node has: a node that changes what it keeps has no proof of it.
"""

import hashlib
import hmac
import json
import logging
import os
import secrets
import shlex
import stat
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from clusterctl.errors import ClusterError
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.node_run import Launched
from clusterctl.own_files import make_private
from clusterctl.plan.plan import Plan
from clusterctl.state_folder import ANOTHER_FOLDER
from clusterctl.verbs.runs.records import RunRecord
from clusterctl.wire import plain

KEY_FILE = "launch.key"
_KEY_BYTES = 32
_WRITING_SECONDS = 1.0
"""How long another launch may take to write the key that it makes."""
_PURPOSE = b"clusterctl launch\n"
_KEPT = ("run", "began", "tree", "commit", "dirty", "options", "resumed")
"""What the nodes keep of a record, besides the job, the nodes' names and most of the plan."""

logger = logging.getLogger(__name__)


def prove(record: RunRecord, plan: Plan, root: Path) -> dict[str, str]:
    """Return what each node keeps of a run's record, with the proof that it is unchanged.

    Args:
        plan: what is started; of its nodes only the master's place is kept.
        root: the folder of this machine's records, which has the key.

    Raises:
        ClusterError: the key cannot be read or made.
    """
    master = replace(plan.master, launcher_argv=(), argv=(), wrap=(), container=(), env=())
    kept = {
        **{name: getattr(record, name) for name in _KEPT},
        "cluster": record.cluster.name,
        "nodes": [node.name for node in record.cluster.nodes],
        "job": record.cluster.job,
        "origins": record.cluster.origins,
        "plan": replace(plan, nodes=(master,), settings=()),
    }
    text = json.dumps(plain(kept), sort_keys=True)
    return {"record": text, "proof": _proof(require_key(root), text)}


def proven_record(
    launched: Launched | None, run: str, cluster: Cluster, root: Path
) -> RunRecord | None:
    """Return the record of a run as a node kept it; None without a proof of this machine.

    Args:
        launched: what `prove` returned, as a node gives it back.
        run: the run that the node says it is of.
        cluster: the inventory, which tells how the nodes are reached.
        root: the folder of this machine's records.

    Raises:
        ClusterError: the key cannot be read.
    """
    text, proof = (launched.record, launched.proof) if launched else ("", "")
    key = _read_key(root) if text else None
    if key is None or not hmac.compare_digest(_proof(key, text).encode(), _bytes(proof)):
        return None
    kept = json.loads(text)
    if (kept["run"], kept["cluster"]) != (run, cluster.name):
        return None
    known = {node.name: node for node in (*cluster.nodes, *cluster.left_out)}
    nodes = tuple(known[name] for name in kept["nodes"] if name in known)
    there = {**plain(cluster.with_nodes(nodes)), "job": kept["job"], "origins": kept["origins"]}
    try:
        return RunRecord.from_document({**kept, "cluster": there})
    except ValueError:
        return None  # of another version, or no node of it is in the inventory


def _proof(key: bytes, text: str) -> str:
    return hmac.new(key, _PURPOSE + _bytes(text), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    """Return any text that JSON can hold, also what is no Unicode."""
    return text.encode(errors="surrogatepass")


def has_key(root: Path) -> bool:
    """Tell whether this machine can prove launches; ClusterError if its key cannot be read."""
    return _read_key(root) is not None


def require_key(root: Path) -> bytes:
    """Return this machine's key; the first launch makes it."""
    key = _read_key(root)
    if key is not None:
        return key
    path = root / KEY_FILE
    try:
        make_private(root)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another launch was first: its key counts
        return require_key(root)
    except OSError as error:
        hint = getattr(error, "hint", "") or f"make {root} writable, or {ANOTHER_FOLDER}"
        raise ClusterError(f"cannot make {path}: {error.strerror}", hint=hint) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ClusterError(f"cannot write {path}: {error.strerror}", hint="df -h") from error
    return require_key(root)


def _read_key(root: Path) -> bytes | None:
    """Return this machine's key, None before the first launch; ClusterError if it is not safe."""
    path = root / KEY_FILE
    until = time.monotonic() + _WRITING_SECONDS
    while True:
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                seen, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(path, str(error.strerror)) from error
        if len(key) == _KEY_BYTES:
            break
        if key or time.monotonic() > until:
            raise _unusable(path, f"expected {_KEY_BYTES} bytes, found {len(key)}")
        time.sleep(0.02)  # another launch has just made it
    mode = stat.S_IMODE(seen.st_mode)
    if seen.st_uid != os.getuid() or (mode & 0o077 and _keeps_modes(root)):
        raise _unusable(path, f"expected a file of mode 0600, found {mode:04o}")
    return key


def _keeps_modes(root: Path) -> bool:
    """Tell whether files can be this user's alone; where one mode is for all, as on CIFS, warn."""
    with tempfile.TemporaryFile(dir=root) as file:
        open_to_all = os.fstat(file.fileno()).st_mode & 0o077
    if open_to_all:
        words = "others may be able to read the key of your launches in %s: %s"
        logger.warning(words, root, ANOTHER_FOLDER)
    return not open_to_all


def _unusable(path: Path, why: str) -> ClusterError:
    """Return the error of a key that cannot be used: moved away, a new one is made."""
    hint = f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.old')}"
    return ClusterError(f"{path}: {why}", hint=hint)
