"""What following a large run costs the controller: CPU seconds a line, and memory.

`python bench/follow.py [RANKS] [SECONDS]` sends the frames that nodes' `tail` sends, over one
socket a node, to a follower in a process of its own: the real frames, merge, fold and print path,
only SSH is left out. Every rank prints one line a second, at a moment of its own. Then a million
lines that fold come as fast as they are taken. The CPU seconds are the follower's alone.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.report.console import Screen
from clusterctl.report.follow import EventPrinter
from clusterctl.report.lines import Prefixed
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.follow import follow
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.wire import Message, read_message
from tests.fake_pool import streamed

RANKS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
PER_NODE = 8
FOLDED_LINES = 1_000_000
FOLDED_NODES, FOLDED_RANKS = 8, 64
PIECE = 200
"""Lines in one message of a rank that prints fast."""
MIB = 1024.0
RUN = "bench-20260101t000000-0000"


class Sockets:
    """Has what `follow` asks of a pool: a socket a node instead of a channel of SSH."""

    def __init__(self, cluster: Cluster, sockets: Mapping[str, socket.socket]) -> None:
        """Keep the nodes' sockets."""
        self.cluster = cluster
        self._sockets = sockets

    def following(
        self, requests: Mapping[str, Request], *, tick: float, answer_timeout: float = math.inf
    ) -> MultiStream:
        """Merge what the nodes send, as `pool.Pool` does."""
        return MultiStream(streamed(self._read), requests, tick=tick, answer_timeout=answer_timeout)

    def _read(self, node: str, request: Request) -> Generator[Message | Reply, None, None]:
        del request
        with self._sockets[node].makefile("rb") as stream:
            while (message := read_message(stream)) is not None:
                yield message
        yield Reply(node=node)


def make_cluster(nodes: int) -> Cluster:
    """Return a cluster of nodes that nobody connects to."""
    names = [f"node{number:03d}" for number in range(nodes)]
    return Cluster(
        name="bench", nodes=tuple(Node(host=name, name=name, ssh=Ssh()) for name in names)
    )


def follower(cluster: Cluster, sockets: Mapping[str, socket.socket], result: Connection) -> None:
    """Follow to the end, and send what it cost."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    with Path("/dev/null").open("w", encoding="utf-8") as sink:
        shown = EventPrinter(screen=Screen(), lines=Prefixed(sink))
        pool = Sockets(cluster, sockets)
        for event in follow(pool, RunLog(RUN, cluster), errors={}):  # type: ignore[arg-type]
            shown.show(event)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result.send((seconds, before.ru_maxrss / MIB, after.ru_maxrss / MIB))


def measure(
    nodes: int, send: Callable[[Sequence[socket.socket]], None]
) -> tuple[float, float, float]:
    """Return CPU seconds, and MiB before and at most, of a follower of what is sent."""
    cluster = make_cluster(nodes)
    pairs = [socket.socketpair() for _ in cluster.nodes]
    ours, theirs = multiprocessing.Pipe()
    sockets = {node.name: pair[1] for node, pair in zip(cluster.nodes, pairs, strict=True)}
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_child, args=(cluster, pairs, sockets, theirs))
    process.start()
    for _, far in pairs:
        far.close()
    send([near for near, _ in pairs])
    found: tuple[float, float, float] = ours.recv()
    process.join()
    return found


def _child(
    cluster: Cluster,
    pairs: Sequence[tuple[socket.socket, socket.socket]],
    sockets: Mapping[str, socket.socket],
    result: Connection,
) -> None:
    for near, _ in pairs:
        near.close()
    follower(cluster, sockets, result)


def data(rank: int, offset: int, body: bytes) -> bytes:
    """Return the frame of a rank's next bytes."""
    head = {"data": f"ranks/{rank}.log", "rank": rank, "offset": offset, "next": offset + len(body)}
    return Message({**head, "time": round(time.time(), 3)}, body).encode()


def last(node: int) -> bytes:
    """Return a node's last frame."""
    part = {"run": RUN, "state": "finished", "ranks": [], "rank0": node * PER_NODE}
    return Message({"node": part, "end": True}).encode()


def live(sockets: Sequence[socket.socket]) -> None:
    """Let every rank print a line a second, each at a moment of its own."""
    chance = random.Random(0)
    moments = sorted((chance.random(), rank) for rank in range(RANKS))
    offsets = [0] * RANKS
    began = time.monotonic()
    for second in range(SECONDS):
        for moment, rank in moments:
            time.sleep(max(0.0, began + second + moment - time.monotonic()))
            body = b"step %6d  loss %.4f  rank %4d  1234.5 tok/s\n" % (second, moment, rank)
            sockets[rank // PER_NODE].sendall(data(rank, offsets[rank], body))
            offsets[rank] += len(body)
    finish(sockets)


def folded(sockets: Sequence[socket.socket]) -> None:
    """Send a million lines, all ranks the same ones, as fast as they are taken."""
    threads = [
        threading.Thread(target=_folded_of, args=(sockets[node], node))
        for node in range(FOLDED_NODES)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _folded_of(stream: socket.socket, node: int) -> None:
    each = FOLDED_RANKS // FOLDED_NODES
    chance = random.Random(node)
    ranks = list(range(node * each, (node + 1) * each))
    offset = 0
    for body in _pieces(FOLDED_LINES // FOLDED_RANKS):
        chance.shuffle(ranks)
        for rank in ranks:
            stream.sendall(data(rank, offset, body))
        offset += len(body)
    stream.sendall(last(node))
    stream.close()


def _pieces(lines: int) -> Iterator[bytes]:
    for begin in range(0, lines, PIECE):
        numbers = range(begin, min(begin + PIECE, lines))
        yield b"".join(b"step %d loss 2.3456 lr 0.0001\n" % number for number in numbers)


def finish(sockets: Sequence[socket.socket]) -> None:
    """End every node's part."""
    for node, stream in enumerate(sockets):
        with contextlib.closing(stream):
            stream.sendall(last(node))


def main() -> None:
    """Measure both, and print."""
    seconds, _, most = measure(RANKS // PER_NODE, live)
    lines = RANKS * SECONDS
    print(f"{RANKS} ranks on {RANKS // PER_NODE} nodes, a line a second each, for {SECONDS} s")
    print(f"  {seconds / SECONDS:6.1%} of one core, {seconds / lines * 1e6:.0f} µs a line")
    print(f"  {most:6.0f} MiB at most")
    seconds, before, most = measure(FOLDED_NODES, folded)
    print(f"{FOLDED_LINES} lines of {FOLDED_RANKS} ranks, folded, as fast as they are taken")
    print(f"  {FOLDED_LINES / seconds:6.0f} lines in a CPU second")
    print(f"  {most:6.0f} MiB at most, {most - before:.0f} of them for the lines")


if __name__ == "__main__":
    main()
