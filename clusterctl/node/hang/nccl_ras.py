"""Asks NCCL what it knows of a run's ranks: its status service RAS, in 2.24 and later.

A thread of each rank answers for the ranks of all nodes, at the address that NCCL_RAS_ADDR names.
"""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any, Collection, Dict, List, Mapping, Set, Tuple

from clusterctl.node.run.processes.processes import read_status
from clusterctl.node.tcp_sockets import listening, plain_address, sockets_of

VARIABLE, SWITCH = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
SECONDS, COLLECT_SECONDS, BETWEEN_SECONDS = 3.5, 1, 0.5
"""How long all may take; how long NCCL waits for ranks that it does not reach; between answers."""
BYTES_LIMIT = 8 * 1024 * 1024
"""A communicator of 1024 ranks has 0.5 MB."""
MOST, MOST_RANKS, MOST_KINDS = 32, 64, 8
"""Communicators, ranks with one problem, and kinds of collectives that an answer has."""
_TEXT_LIMIT = 64
_GREETING, _AS_JSON, _ASK = (
    "CLIENT PROTOCOL 2\nTIMEOUT %d\n",
    "SET FORMAT json\n",
    "VERBOSE STATUS\n",
)
_REPORT = re.compile(r"^(?:\{|NCCL version )", re.MULTILINE)
"""What the report begins with, after the words that answer each line."""
_ERRORS = re.compile(r"^Errors\n=+\n(.*?)(?:^Warnings\n=+$|\Z)", re.MULTILINE | re.DOTALL)
_OF_GROUP = re.compile(r"^#\S+ \((\w+)\) (?:MISMATCH|INCOMPLETE)\b")
_COUNT = re.compile(r"(\d+) ranks? ha(?:s|ve) launched up to operation (\d+)")
_RANK = re.compile(r"[Rr]ank:? (\d+) -- GPU \S+ managed by process (\d+) on node (\S+)")
_PROCESS = re.compile(r"^ *Process (\d+) on node (\S+)", re.MULTILINE)


class NoAnswerError(Exception):
    """Why NCCL told nothing that can be read, in words."""


def communicators_of(address: str, pids: Collection[int]) -> List[Dict[str, Any]]:
    """Return what `Communicator` has of each one, those with a problem first.

    Args:
        address: HOST:PORT, as NCCL got it.
        pids: the processes of this node's ranks: one of them must hold the port.

    Raises:
        NoAnswerError: there is no answer, or it cannot be read.
    """
    until = time.monotonic() + SECONDS
    found = _read(_report(address, pids, until), pids)
    if any(map(_has_problem, found)):  # in a run that continues, it is another one a moment later
        time.sleep(BETWEEN_SECONDS)
        before = {one["name"]: one for one in found}
        found = _read(_report(address, pids, until), pids)
        for one in found:
            one["moves"] = one != before.get(one["name"])
    return sorted(found, key=lambda one: not _has_problem(one))[:MOST]


def _has_problem(one: Mapping[str, Any]) -> bool:
    return bool(one["unreached"]) or any(each["least"] < each["most"] for each in one["launches"])


def _report(address: str, pids: Collection[int], until: float) -> str:
    """Return NCCL's report, as JSON or, before NCCL 2.28, as text."""
    host, _, number = address.rpartition(":")
    port = int(number) if number.isascii() and number.isdigit() else 0
    inodes = {one.inode for one in listening(port)}
    if not inodes or not any(inodes & sockets_of(pid) for pid in pids):
        why = "no rank listens at %s: no communicator yet, or NCCL before 2.24"
        raise NoAnswerError(why % address[:_TEXT_LIMIT])
    plain = plain_address(host.strip("[]"))
    problem = ""
    for form in (_AS_JSON, ""):
        words = _GREETING % COLLECT_SECONDS + form + _ASK
        for each in [plain] if plain else ["127.0.0.1", "::1"]:
            try:
                text = _talk(each, port, words.encode(), until)
            except OSError as error:
                problem = problem or error.strerror or str(error)
                continue
            begin = _REPORT.search(text)
            if begin:
                return text[begin.start() :]
            problem = (
                "it said %r" % text[-_TEXT_LIMIT:] if text else "nothing within %g s" % SECONDS
            )
    raise NoAnswerError("%s does not answer: %s" % (address[:_TEXT_LIMIT], problem))


def _talk(host: str, port: int, words: bytes, until: float) -> str:
    """Return all that comes until the other side closes, refuses a line, or time is over.

    Raises:
        OSError: no connection.
        NoAnswerError: it sends too much.
    """
    data = bytearray()
    with socket.create_connection((host, port), timeout=_left(until)) as link:
        link.sendall(words)
        while time.monotonic() < until and b"\nERROR" not in data[:_TEXT_LIMIT]:
            link.settimeout(_left(until))
            try:
                part = link.recv(1 << 16)
            except socket.timeout:
                break
            if not part:
                break
            data += part
            if len(data) > BYTES_LIMIT:
                raise NoAnswerError("its answer has more than %d bytes" % BYTES_LIMIT)
    return data.decode("utf-8", "replace")


def _left(until: float) -> float:
    return max(0.01, until - time.monotonic())


def _read(report: str, pids: Collection[int]) -> List[Dict[str, Any]]:
    try:
        if not report.startswith("{"):
            return _from_text(report)
        told = json.loads(report)["communicators"]
        known = {_count(rank["pid"]) for one in told for rank in one["ranks"]}
        if told and not known & set(map(_inner_pid, pids)):
            raise NoAnswerError("it answers for the ranks of another run")
        return [_communicator(one) for one in told]
    except (
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise NoAnswerError("its answer cannot be read: %r" % error) from error


def _inner_pid(pid: int) -> int:
    """Return a process's number as it knows it: in a container, it is another."""
    words = read_status(pid).get(b"NSpid", b"").split()
    return int(words[-1]) if words else pid


def _communicator(told: Mapping[str, Any]) -> Dict[str, Any]:
    ranks = told["ranks"]
    counts: Dict[str, List[Tuple[int, Mapping[str, Any]]]] = {}
    for rank in ranks:
        for name, count in rank["collective_counts"].items():
            counts.setdefault(name, []).append((_count(count), rank))
    launches = []
    for name, of_ranks in list(counts.items())[:MOST_KINDS]:
        least, most = (pick(count for count, _ in of_ranks) for pick in (min, max))
        behind = [_rank(rank) for count, rank in of_ranks if count == least < most][:MOST_RANKS]
        if most:
            launches.append(_launches(_text(name), least, most, behind))
    return {
        "name": _text(told["hash"]),
        "size": _count(told["size"]),
        "unreached": [_rank(one) for one in (told.get("missing_ranks") or [])[:MOST_RANKS]],
        "launches": launches,
        "moves": False,
    }


def _launches(name: str, least: int, most: int, behind: List[Dict[str, Any]]) -> Dict[str, Any]:
    return {"operation": name, "least": least, "most": most, "behind": behind}


def _rank(told: Mapping[str, Any]) -> Dict[str, Any]:
    state = {**told, **(told.get("status") or {})}
    return {
        "rank": _count(told["rank"], 1 << 20),
        "host": _text(told["host"]),
        "pid": _count(told["pid"], 1 << 31),
        "dead": state.get("considered_dead") is True,
    }


def _from_text(report: str) -> List[Dict[str, Any]]:
    """Return the communicators that the text has under `Errors`; of others it gives no ranks."""
    section = _ERRORS.search(report)
    if section is None:
        raise ValueError("it has no errors' section")
    parts = [part.strip("\n") for part in section.group(1).split("\n\n") if part.strip()]
    dead = {match for part in parts if part.startswith("DEAD") for match in _PROCESS.findall(part)}
    found: Dict[str, Dict[str, Any]] = {}
    for part in parts:
        head = _OF_GROUP.match(part)
        if head:
            name = head.group(1)
            empty: Dict[str, Any] = {"size": 0, "unreached": [], "launches": [], "moves": False}
            _add_part(found.setdefault(name, {"name": name, **empty}), part, dead)
    if parts and not found:
        raise ValueError(parts[0][:_TEXT_LIMIT])
    return list(found.values())


def _add_part(one: Dict[str, Any], part: str, dead: Set[Tuple[str, str]]) -> None:
    """Add what a paragraph about a communicator tells: ranks follow the count that they have."""
    of_counts: List[Tuple[int, List[Dict[str, Any]]]] = []
    for line in part.splitlines():
        count, rank = _COUNT.search(line), _RANK.search(line)
        if count:
            of_counts.append((_count(count.group(2)), []))
            one["size"] += _count(count.group(1), 1 << 20)
        elif rank:
            number, pid, host = rank.groups()
            gone = {"considered_dead": (pid, host) in dead}
            ranks = of_counts[-1][1] if of_counts else one["unreached"]
            if len(ranks) < MOST_RANKS:
                ranks.append(_rank({"rank": number, "pid": pid, "host": host, **gone}))
    if of_counts:
        of_counts.sort(key=lambda each: each[0])
        (least, behind), (most, _) = of_counts[0], of_counts[-1]
        one["launches"].append(_launches("", least, most, behind if least < most else []))


def _text(told: object) -> str:
    return str(told)[:_TEXT_LIMIT].encode("utf-8", "replace").decode("utf-8")


def _count(told: Any, limit: int = 1 << 53) -> int:  # noqa: ANN401  (a number)
    count = int(told)
    if not 0 <= count <= limit:
        raise ValueError("no count: %d" % count)
    return count
