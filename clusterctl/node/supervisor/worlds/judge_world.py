"""Tells the world that was planned from another one in which a node would train alone. Pure.

What is certain ends the run: a store of a node's own at the planned port, a launcher that meets
itself, ranks of a launcher that counts fewer nodes, a Python program whose own processes meet at
its store (elastic_launch, notebook_launcher). A program may have worlds besides the planned
one, such as a server that it starts: what a Python program starts before it joins proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Container, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.supervisor.worlds.launcher_names import PYTHON, split_launcher
from clusterctl.node.supervisor.worlds.rendezvous_sockets import Member
from clusterctl.node.tcp_sockets import ESTABLISHED, SYN_SENT, is_loopback, plain_address

AGENTS = ("torchrun", "accelerate launch")
"""Launchers whose own process meets the other nodes."""
DEEPSPEED_NODE = "deepspeed.launcher.launch"
"""DeepSpeed's own process of each node: no program of the user's."""
SHOWN = 200
"""Characters of a command that others are shown."""
MAX_SCRIPT = 65536
"""Characters of a script that are read."""
_CALL = re.compile(
    r"\s*(?:(?:\w+=\S*|exec|env|time|nohup|then|else|do|!)\s+)*"
    r"(?:(?:\S*/)?(?:torchrun|deepspeed|ds|accelerate(?:-|\s+)launch)|\S+\s+(?:-\S+\s+)*?-m\s+"
    r"(?:torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch))(?=\s|$)"
)
"""A script's command that calls a launcher."""
_ONE = r"['\"]?1(?::1)?['\"]?(?:\s|$)"
_ONE_NODE = re.compile(r"--(?:nnodes|num[-_](?:machines|nodes))[= ]+" + _ONE)
_ALONE = re.compile("--standalone|" + _ONE_NODE.pattern)
_SEVERAL = re.compile(r"--(?:nnodes|num[-_](?:machines|nodes))[= ]+(?!%s)" % _ONE)
_FIRST = re.compile(r"--(?:node|machine)[-_]rank[= ]+0(?:\s|$)")
_STORE_AT = re.compile(r"--(?:master[-_]addr|main[-_]process[-_]ip)[= ]+(\S+)")
_TEXT_FOLLOWS = re.compile("-[a-z]*c")
_FREE_PORTS = 32768
"""Where Linux's own choice of ports begins; services that a program uses have lower ones."""
_LAUNCHES = ("elastic_launch(", "notebook_launcher(", "launch_agent(", "torch.distributed.run")
"""How a Python program becomes a launcher itself."""


OWN_STORE = "a rendezvous of the program's own processes"
"""What is found of a program that is a launcher itself."""


class Meeting(NamedTuple):
    """Where the ranks of a run were planned to meet."""

    address: str
    """As the kernel shows it; empty: it is a name."""
    port: int
    shown: str
    is_master: bool
    nodes: int
    """How many must be there at least."""
    elastic: bool
    others: FrozenSet[str] = frozenset()
    """Addresses of the other nodes; empty if several nodes share one."""

    @classmethod
    def of(cls, job: NodeJob) -> Meeting:
        """Return the plan of one node's job."""
        host, port = job["master"]["address"], int(job["master"]["port"])
        least = job.get("min_nodes") or job["nnodes"]
        elastic = bool(job.get("elastic"))
        shown = "%s:%d" % (host, port)
        nodes = [plain_address(line.split()[0]) for line in job["hostfile"].splitlines()]
        others = frozenset(nodes) - {"", plain_address(job["address"])}
        apart = others if len(others) == len(nodes) - 1 else frozenset()
        return cls(plain_address(host), port, shown, job["node_rank"] == 0, least, elastic, apart)


class OtherWorld(NamedTuple):
    """Proof that a rank does not meet the other nodes."""

    pid: int
    """Of its launcher, or of the process without one."""
    found: str


def has_joined(rank: List[Member], meeting: Meeting) -> bool:
    """Tell whether a process of a rank is at the planned rendezvous, or the one that it led to.

    torchrun's c10d gives its ranks a port of their own. On the master the address may be any that
    it has; on another node a connection to that node itself is none to the master.
    """
    for member in rank:
        if meeting.is_master and meeting.port in member.listens_on:
            return True
        for address, port in _connected(member):
            there = address == meeting.address or meeting.is_master or not is_loopback(address)
            if there and (port == meeting.port or _led_to(member, port, meeting)):
                return True
    return False


def has_met(rank: List[Member], meeting: Meeting) -> bool:
    """Tell whether a process of a rank is connected to another node, but for that to a store.

    Where several nodes share an address, only the store can tell.
    """
    if not meeting.others:
        return has_joined(rank, meeting)
    for member in rank:
        given = member.environment.get("MASTER_PORT", "")
        stores = {meeting.port, int(given) if given.isdigit() else 0}
        if member.has_store:
            stores.update(member.listens_on)
        for each in [] if member.is_launcher else member.sockets:
            ports = {each.local_port, each.remote_port}
            if each.state != ESTABLISHED or ports & stores or each.is_within:
                continue
            # By another interface than planned, too: gloo and NCCL take any free port.
            if each.remote in meeting.others or min(ports) >= _FREE_PORTS:
                return True
    return False


def connecting(rank: List[Member], meeting: Meeting) -> bool:
    """Tell whether a process of a rank gets no answer from the planned rendezvous."""
    return any(
        (each.state, each.remote_port) == (SYN_SENT, meeting.port)
        for member in rank
        for each in member.sockets
    )


def waiting_launcher(rank: List[Member]) -> str:
    """Return the launcher below a rank that has no ranks yet; empty: there is none."""
    parents = {member.parent for member in rank}
    for member in rank:
        found = split_launcher(member.words)
        if found and found[0] in AGENTS and member.pid not in parents:
            return found[0]
    return ""


def first_store(rank: List[Member]) -> Tuple[int, str]:
    """Return the launcher that is to hold the store, as the first of all, and the address for it.

    0, "": there is none, or the address is not fixed in its words.
    """
    for member in rank:
        words = " ".join(member.words)
        at = _STORE_AT.search(words)
        if at and _FIRST.search(words) and split_launcher(member.words):
            return member.pid, plain_address(at[1])
    return 0, ""


def other_world(
    rank: List[Member], meeting: Meeting, passed: Container[int] = ()
) -> Optional[OtherWorld]:
    """Return the proof that a rank which has not joined meets elsewhere; None: there is none.

    It is none of those whose launcher, or own process, has `passed`.
    """
    if meeting.nodes == 1:
        return None
    by_pid = {member.pid: member for member in rank}
    for member in rank:
        launcher = _launcher_above(member, by_pid)
        pid = (launcher or member).pid
        if pid in passed:
            continue
        host, port = _own_store(member, by_pid)
        if host and host not in passed and not has_joined(rank, meeting):
            return OtherWorld(host, "%s at port %d" % (OWN_STORE, port))
        if meeting.port in member.listens_on and not (meeting.is_master or meeting.elastic):
            return OtherWorld(pid, "a rendezvous of its own at port %d" % meeting.port)
        if launcher is None:
            continue
        # Alone at its own store, it would wait there in vain for the other nodes.
        in_vain = launcher is member and _wants_several(launcher)
        if not in_vain and _programs_above(launcher, by_pid):
            continue
        judge = _meets_itself if launcher is member else _counts_fewer
        found = judge(member, meeting)
        if found:
            return OtherWorld(pid, found)
    return None


def _connected(member: Member) -> List[Tuple[str, int]]:
    there = [each for each in member.sockets if each.state == ESTABLISHED]
    return [(each.remote, each.remote_port) for each in there]


def _led_to(member: Member, port: int, meeting: Meeting) -> bool:
    """Tell whether a launcher gave a process this port for a world of all nodes."""
    given = member.environment
    world = given.get("WORLD_SIZE", "")
    alone = world.isdigit() and int(world) < meeting.nodes  # a script may set it
    return given.get("MASTER_PORT") == str(port) and _nodes_in(given) >= meeting.nodes and not alone


def _nodes_in(environment: Dict[str, str]) -> int:
    """Return how many nodes the launcher of a rank counted; 0: it does not say."""
    text = environment.get("CROSS_SIZE") or environment.get("GROUP_WORLD_SIZE") or ""
    return int(text) if text.isdigit() else 0


def _meets_itself(launcher: Member, meeting: Meeting) -> str:
    """Say how a launcher waits for other nodes in a store of its own; empty: it does not."""
    own = [port for address, port in _connected(launcher) if is_loopback(address)]
    ports = [port for port in own if port in launcher.listens_on]
    standalone = "--standalone" in launcher.words
    if not ports or (meeting.is_master and not standalone):
        return ""  # on the master that may be where the others come to
    return "a rendezvous of its own at localhost:%d" % ports[0]


def _counts_fewer(member: Member, meeting: Meeting) -> str:
    """Say what world a launcher gave to a rank without all nodes; empty: it has them."""
    given, nodes = member.environment, _nodes_in(member.environment)
    if not given.get("RANK", "").isdigit() or not 0 < nodes < meeting.nodes:
        return ""
    where = "%s:%s" % (given.get("MASTER_ADDR"), given.get("MASTER_PORT"))
    world = given.get("WORLD_SIZE", "?")[:10]
    what = "node" if nodes == 1 else "nodes"
    return "RANK=%s of WORLD_SIZE=%s on %d %s, at %s" % (given["RANK"], world, nodes, what, where)


def _own_store(member: Member, by_pid: Dict[int, Member]) -> Tuple[int, int]:
    """Return which program above a process holds the torch store that it meets at, and the port.

    0, 0: none, or processes of other nodes are there too.
    """
    for host in _above(member, by_pid):
        ports = {port for _, port in _connected(member)}.intersection(host.listens_on)
        if not (ports and host.has_store) or host.is_launcher:
            continue
        there = [each for each in host.sockets if each.state == ESTABLISHED]
        come = [each for each in there if each.local_port in ports]
        if all(each.is_within for each in come):
            return host.pid, min(ports)
    return 0, 0


def _above(member: Member, by_pid: Dict[int, Member]) -> Iterator[Member]:
    """Yield the processes that led to one, the nearest first."""
    above = by_pid.get(member.parent)
    while above is not None:
        yield above
        above = by_pid.get(above.parent)


def _launcher_above(member: Member, by_pid: Dict[int, Member]) -> Optional[Member]:
    """Return the launcher that a process is, or that started it; None: there is none."""
    own = (member, *_above(member, by_pid))
    return next((each for each in own if each.is_launcher), None)


def _programs_above(launcher: Member, by_pid: Dict[int, Member]) -> bool:
    """Tell whether a Python program of the user's started a launcher: it may join by itself."""
    for above in _above(launcher, by_pid):
        program = os.path.basename(above.words[0]) if above.words else ""
        if PYTHON.fullmatch(program) and not above.is_launcher:
            return DEEPSPEED_NODE not in above.words
    return False


def script_line(rank: List[Member], pid: int, workdir: str) -> str:
    """Return `SCRIPT:LINE: COMMAND` of the launcher in the script that started it, if known."""
    by_pid = {member.pid: member for member in rank}
    member = by_pid.get(pid)
    if member is None:
        return ""
    launcher = _launcher_above(member, by_pid) or member
    if not (launcher.is_launcher or launcher.has_store):
        return ""
    named = split_launcher(launcher.words)
    names: Tuple[str, ...] = _LAUNCHES
    above: Optional[Member] = launcher
    if named is not None:
        names = (named[0].partition(" ")[0], "torch.distributed.run", "torch.distributed.launch")
        above = by_pid.get(launcher.parent)
    shown = " ".join(launcher.words).strip()[:SHOWN]
    for word in above.words[1:] if above is not None else ():
        path = os.path.join(workdir, word)
        if word.startswith("-") or not os.path.isfile(path):
            continue
        number = _line_with(path, names)
        return "%s:%d: %s" % (word, number, shown) if number else shown
    return shown


def more_to_come(rank: List[Member], pid: int, workdir: str) -> bool:
    """Tell whether a launcher of one node has others after it in the scripts that started it.

    It may prepare or serve the training then. What comes later is judged once it runs.
    """
    by_pid = {member.pid: member for member in rank}
    launcher = by_pid.get(pid)
    called = launcher is not None and launcher.is_launcher
    if launcher is None or (called and _wants_several(launcher)):
        return False
    seen = {""}
    for above in _above(launcher, by_pid):
        text = _script_text(above.words, workdir)
        if text not in seen:
            calls = [each for each in _commands(text) if _CALL.match(each)]
            later = calls[1:] if called and len(seen) == 1 else calls  # one call has been made
            if not all(map(_ALONE.search, later)):
                return True
            seen.add(text)
    return False


def calls_launcher(command: List[str], workdir: str) -> bool:
    """Tell whether the shell script of a command, or its text, calls a launcher."""
    return any(map(_CALL.match, _commands(_script_text(["", *command], workdir))))


def _wants_several(launcher: Member) -> bool:
    """Tell whether a launcher waits for several nodes: torchrun also by its environment."""
    words = " ".join(launcher.words)
    given = launcher.environment.get("PET_NNODES", "1")
    return bool(_SEVERAL.search(words)) or (given != "1" and not _ONE_NODE.search(words))


def _script_text(words: List[str], workdir: str) -> str:
    """Return what a shell runs: the text after -c, or its file; empty: neither is seen."""
    for before, word in zip(words, words[1:]):
        if _TEXT_FOLLOWS.fullmatch(before):
            return word
        path = os.path.join(workdir, word)
        if word and not word.startswith("-") and os.path.isfile(path):
            with contextlib.suppress(OSError), open(path, errors="replace") as file:
                return file.read(MAX_SCRIPT)
    return ""


def _commands(text: str) -> List[str]:
    without_comments = re.sub(r"(?m)^[ \t]*#.*$", "", text).replace("\\\n", " ")
    return re.split(r"[\n;|&]+", without_comments)


def _line_with(path: str, names: Tuple[str, ...]) -> int:
    """Return the number of the first line of a script that calls a launcher; 0: none does."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file.read(MAX_SCRIPT).splitlines(), 1):
                if not line.lstrip().startswith("#") and any(each in line for each in names):
                    return number
    except OSError:
        pass
    return 0
