"""One run a machine, or a GPU: whether its lock is held, by whom, and asking the holder.

The lock is the supervisor's abstract socket: seen across users and mounts, without a folder, and
released when its holder ends, however that happens. Request and answer are a JSON line each.

A run takes the whole machine, `clusterctl-run`, or some of its GPUs,
`clusterctl-run/GPU-…,GPU-…,port-29500`, with the port if its ranks meet on this machine. For the
latter it holds a socket for each of these, and one of the machine's slots: `clusterctl-run/0` and
so on. By the slots a run that wants the whole machine finds it, whatever GPUs it has. A run first
takes its own sockets, then looks for the others. So two that start at once may both be refused,
but never both run.
"""

from __future__ import annotations

import _socket
import os
import struct
import time

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.own_files import user_name
from clusterctl.wire import BadLine, LineReader, encode_line

TYPE_CHECKING = False
# `socket` and `typing` take a node longer to import than a sync has to do.
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Optional

NAME = "clusterctl-run"
"""The lock of a machine; the loopback sandbox adds its port, for several nodes on one machine."""

ANSWER_SECONDS = 2.0
"""How long an answer may take in all, the wait for a connection included."""
LINE_LIMIT = 65536
"""Bytes of a request."""
ANSWER_LIMIT = 1 << 20
"""Bytes of an answer."""
_RETRY_SECONDS = 0.02
_MIN_SECONDS = 0.1
"""What each further holder gets when the others took all the time."""

MAX_SHARING_RUNS = 16
"""How many runs may share a machine: no common machine has more GPUs."""

RUN_ID_LIMIT = 64
WORKDIR_ID_CHARACTERS = 64
_GPU = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"

UUID_CHARACTERS = 12
"""Characters of a GPU's UUID that a message shows; CUDA_VISIBLE_DEVICES takes as few."""

_CREDENTIALS = struct.Struct("3i")


class PeerProcess:
    """The process at the other end of a socket, as the kernel reports it."""

    def __init__(self, pid: int, uid: int) -> None:
        self.pid = pid
        self.uid = uid

    @classmethod
    def of(cls, connection: _socket.socket) -> PeerProcess:
        """Ask the kernel who it is."""
        raw = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        return cls(pid, uid)

    @property
    def is_other_user(self) -> bool:
        """It is neither this user's nor root's."""
        return self.uid not in (0, os.getuid())


def machine_of(name: str) -> str:
    """Return the lock of the whole machine that a lock is of."""
    return name.partition("/")[0]


def resources_of(name: str) -> List[str]:
    """Return the GPUs and the port that a lock is of; none for the whole machine's."""
    listed = name.partition("/")[2]
    return listed.split(",") if listed else []


def sockets(name: str) -> List[str]:
    """Return the sockets that exclude others from what a lock is of; the first is asked."""
    return ["%s/%s" % (machine_of(name), gpu) for gpu in resources_of(name)] or [name]


def slots(machine: str) -> List[str]:
    """Return the sockets of which each run with GPUs of its own holds one."""
    return ["%s/%d" % (machine, number) for number in range(MAX_SHARING_RUNS)]


def conflicting_sockets(name: str) -> List[str]:
    """Return every socket whose holder keeps others from taking this lock."""
    machine = machine_of(name)
    return [machine, *(sockets(name) if resources_of(name) else slots(machine))]


def conflict(one: str, other: str) -> bool:
    """Tell whether two locks cannot be held at once."""
    if machine_of(one) != machine_of(other):
        return False
    ours, theirs = set(resources_of(one)), set(resources_of(other))
    return not ours or not theirs or bool(ours & theirs)


def lock_holders(names: Iterable[str]) -> Iterator[Dict[str, Any]]:
    """Ask who holds each of these; those that are slow to answer get no more time together."""
    until = time.monotonic() + ANSWER_SECONDS
    for name in names:
        seconds = max(_MIN_SECONDS, until - time.monotonic())
        holder = query(name, {"ask": "who"}, seconds=seconds)
        if holder is not None:
            yield holder


def query(
    name: str, request: Dict[str, Any], *, seconds: float = ANSWER_SECONDS
) -> Optional[Dict[str, Any]]:
    """Ask the holder of a lock; None: it is free.

    A holder that does not answer in time (it is frozen, or foreign) answers as `{"pid", "uid"}`.
    Any user can take the name: of another user's answer only what is harmless is returned.
    """
    deadline = time.monotonic() + seconds
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        try:
            _connect(connection, sockets(name)[0], deadline)
        except ConnectionRefusedError:
            return None
        except OSError:
            return {}
        peer = PeerProcess.of(connection)
        try:
            connection.sendall(encode_line(request))
            answer = _read_answer(connection, deadline)
        except (OSError, BadLine):
            answer = {}
        if peer.is_other_user:
            answer = _untrusted(answer, peer)
        return {**answer, "pid": peer.pid, "uid": peer.uid}
    finally:
        connection.close()


def live_run(folder: bytes, machine: str) -> Optional[Dict[str, Any]]:
    """Return a run of this machine that works in a folder, or may; None: there is none."""
    ours = workdir_id(folder)
    for holder in lock_holders([machine, *slots(machine)]):
        theirs, workdir = holder.get("workdir_id"), workdir_of(holder)
        if not isinstance(theirs, str):  # of an earlier version
            theirs = workdir_id(os.fsencode(workdir)) if workdir else ours
        if theirs == ours:
            return holder
    return None


def workdir_id(folder: bytes) -> str:
    """Return what tells other users whether a run works in their folder, and nothing else."""
    import hashlib  # noqa: PLC0415  (start-up counts)

    return hashlib.sha256(os.path.realpath(folder)).hexdigest()


def _connect(connection: _socket.socket, name: str, deadline: float) -> None:
    """Connect, and wait for a place in the queue; OSError if none listens, or it stays full."""
    while True:
        connection.settimeout(max(_RETRY_SECONDS, deadline - time.monotonic()))
        try:
            connection.connect("\0" + name)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _read_answer(connection: _socket.socket, deadline: float) -> Dict[str, Any]:
    """Read one line.

    Raises:
        OSError: it takes too long.
        BadLine: it is too long, is cut off, or is empty.
    """
    lines = LineReader()
    while (answer := lines.next(ANSWER_LIMIT)) is None:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        received = connection.recv(LINE_LIMIT)
        if not received:
            raise BadLine("the answer ended within its line")
        if time.monotonic() > deadline:
            raise TimeoutError
        lines.feed(received)
    return answer


def _untrusted(answer: Dict[str, Any], peer: PeerProcess) -> Dict[str, Any]:
    """Return what may be believed and shown of another user's answer."""
    if not is_run_id(answer.get("run")):
        return {}
    workdir = workdir_of(answer)
    known: Dict[str, Any] = {"run": answer["run"], "user": user_name(peer.uid)}
    if isinstance(answer.get("workdir_id"), str):
        known["workdir_id"] = answer["workdir_id"][:WORKDIR_ID_CHARACTERS]
    elif workdir:
        known["workdir"] = workdir
    since = answer.get("since")
    known["since"] = since if isinstance(since, (int, float)) else None
    return {**known, "holds": valid_resources(answer)}


def workdir_of(answer: Dict[str, Any]) -> str:
    """Return the folder that a holder works in; empty: it names none that can be."""
    workdir = answer.get("workdir")
    if not isinstance(workdir, str) or len(workdir) >= LINE_LIMIT or "\0" in workdir:
        return ""
    try:
        os.fsencode(workdir)
    except UnicodeEncodeError:  # half a character, which JSON can bring in
        return ""
    return workdir


def valid_resources(answer: Dict[str, Any]) -> List[str]:
    """Return the GPUs and the port that a holder names; none unless all of it can be that."""
    named = answer.get("holds")
    return named if isinstance(named, list) and all(map(is_device_id, named)) else []


def is_device_id(text: object) -> bool:
    """Tell whether this can be the UUID of a GPU, or a port."""
    if not isinstance(text, str) or len(text) > len(_GPU):
        return False
    if text.startswith("port-"):
        return set(text[5:]) <= set("0123456789")
    return "".join("x" if letter in "0123456789abcdef" else letter for letter in text) == _GPU


def is_run_id(text: object) -> bool:
    """Tell whether this can be a run's id: nothing else belongs in a command to type."""
    if not isinstance(text, str) or not 0 < len(text) <= RUN_ID_LIMIT or text[0] == "-":
        return False
    return set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def in_use_error(holder: Dict[str, Any]) -> OperationError:
    """Return the error that names who holds the machine."""
    uid, run = holder.get("uid"), holder.get("run")
    if is_run_id(run):
        user = holder.get("user", "?")
        about = " " + holder["about"] if isinstance(holder.get("about"), str) else ""
        since = _moment(holder.get("since"))
        known = "run %s%s of user %s, since %s" % (run, about, user, since)
        resources = [name[:UUID_CHARACTERS] for name in valid_resources(holder)]
        known += ", on " + ", ".join(resources) if resources else ""
        hint = (
            "clusterctl status {0} shows it, clusterctl stop {0} ends it;"
            " or launch on other nodes".format(run)
        )
        if uid != os.getuid():
            hint = (
                "wait for it, ask user %s to stop it, or leave the node out with --exclude" % user
            )
    elif uid is not None:
        known = "pid %s of user %s, which does not answer" % (holder.get("pid"), user_name(uid))
        hint = "ps -fp %s (on the node) shows that process" % holder.get("pid")
    else:
        known = "its lock is held by a process that cannot be asked"
        hint = "ss -xlp (on the node) shows who holds it"
    return OperationError("busy", "the machine is busy: " + known, holder=holder, hint=hint)


def _moment(since: Any) -> str:  # noqa: ANN401  (the holder of the lock may send anything)
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since))
    except (TypeError, ValueError, OverflowError, OSError):
        return "an unknown time"
