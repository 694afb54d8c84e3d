"""The link: only this run's supervisors, what they say, and what their silence says."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.peer_link import master, tls_channel
from clusterctl.node.peer_link.master import Master
from clusterctl.node.peer_link.messages import PeerMessage
from clusterctl.node.peer_link.peer import Peer
from clusterctl.node.peer_link.peers import Peers, connect
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.peer_link.tls_channel import client_context
from clusterctl.node.peer_link.worker import Worker
from clusterctl.plan.certificate import Identity, make_identity

IDENTITY = make_identity("lab-1")


class Heard:
    """What a side was told, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[str, object]] = []
        self.told: PeerMessage = {}

    def clock_measured(self, offset: float, error: float) -> None:
        self.all.append(("clock", (offset, error)))

    def peer_joined(self, node: str) -> None:
        self.all.append(("joined", node))

    def peer_lost(self, node: str, words: str) -> None:
        del words
        self.all.append(("lost", node))

    def peer_ending(self, message: PeerMessage) -> None:
        self.all.append(("ending", message))

    def peer_leaves(self, ending: PeerMessage) -> bool:
        del ending
        return False

    def life(self) -> PeerMessage:
        return self.told

    def run_hung(self, judgement: PeerMessage) -> None:
        self.all.append(("hung", judgement))

    def run_slow(self, judged: list[PeerMessage]) -> None:
        self.all.append(("slow", judged))

    def master_over(self, state: str) -> None:
        self.all.append(("over", state))

    def of(self, kind: str) -> list[object]:
        return [what for each, what in self.all if each == kind]


class Link:
    """A master and its workers in one event loop."""

    def __init__(
        self, workers: int = 2, *, lost_after: float = 5.0, address: str = "127.0.0.1"
    ) -> None:
        self.loop = EventLoop()
        self.address = address
        self.lost_after = lost_after
        self.more: dict[str, Any] = {}
        """What else the job of the next side has."""
        self.names = ["master", *(f"w{n}" for n in range(workers))]
        self.heard = {name: Heard() for name in self.names}
        self.sides: list[Master | Worker] = []
        self.master = self.side("master", 0, IDENTITY)
        assert isinstance(self.master, Master)

    def side(self, name: str, port: int, identity: Identity, token: str = "") -> Master | Worker:
        job: Any = {
            "node": name,
            "nnodes": len(self.names),
            "node_rank": self.names.index(name),
            "address": self.address,
            "workers": self.names[1:],
            "master": {"node": "master"},
            "link": {
                "address": self.address,
                "port": port,
                "certificate": identity.certificate,
                "lost_after": self.lost_after,
            },
            **self.more,
        }
        secrets = {"token": token or node_token(identity.token, name), "key": identity.key}
        if not port:
            secrets["token"] = identity.token  # of the master alone
        made = connect(self.loop, job, secrets, self.heard[name])
        assert isinstance(made, (Master, Worker))
        self.sides.append(made)
        return made

    def worker(self, n: int, identity: Identity = IDENTITY, token: str = "") -> Master | Worker:
        return self.side(f"w{n}", self.master.port, identity, token)

    def replace_master(self) -> Master:
        """Let another master take the place of the first, with what `more` has."""
        self.sides.remove(self.master)
        self.master.close()
        made = self.side("master", 0, IDENTITY)
        assert isinstance(made, Master)
        self.sides = [made, *self.sides[:-1]]
        self.master = made
        return made

    def until(self, condition: object, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < until, {n: h.all for n, h in self.heard.items()}
            self.run_once()

    def live(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.run_once()

    def close(self) -> None:
        """Close the workers, wait until the master has noticed, and close the master."""
        for side in self.sides[1:]:
            side.close()
        self.until(lambda: len(self.loop._selector.get_map()) <= 1)
        self.master.close()

    def run_once(self) -> None:
        self.loop.call_later(0.02, lambda: None)
        self.loop.run_once()


@contextmanager
def link(
    workers: int = 2, *, lost_after: float = 5.0, address: str = "127.0.0.1"
) -> Iterator[Link]:
    made = Link(workers, lost_after=lost_after, address=address)
    try:
        yield made
    finally:
        made.close()


def test_supervisors_are_linked_over_ipv6_too(ipv6: str) -> None:
    with link(1, address=ipv6) as net:
        worker = net.worker(0)
        net.until(lambda: not net.master.missing and not worker.missing)


def test_an_end_is_told_to_all_at_once() -> None:
    with link() as net:
        workers = [net.worker(0), net.worker(1)]
        net.until(lambda: not net.master.missing)
        workers[1].send_ending({"by": "rank", "node": "w1", "reason": "why"})
        net.until(lambda: net.heard["w0"].of("ending"))
        for name in ("master", "w0"):
            assert net.heard[name].of("ending")[0] == {"by": "rank", "node": "w1", "reason": "why"}
        for worker in workers:
            worker.send_bye("failed")
        net.until(lambda: net.master.acknowledged and all(w.acknowledged for w in workers))
        assert net.master.all_done
        for worker in workers:
            worker.close()


def test_who_comes_late_hears_of_the_end_too() -> None:
    with link() as net:
        net.master.send_ending({"by": "stop", "node": "master", "reason": "why"})
        worker = net.worker(0)
        net.until(lambda: net.heard["w0"].of("ending"))
        worker.close()


def test_the_workers_hear_that_the_run_is_over_on_the_master_late_ones_too() -> None:
    with link(2) as net:
        workers = [net.worker(0)]
        net.until(lambda: net.master.missing == {"w1"})
        net.master.send_bye("finished")
        net.until(lambda: net.heard["w0"].of("over") == ["finished"])
        workers.append(net.worker(1))
        net.until(lambda: net.heard["w1"].of("over") == ["finished"])
        assert not net.master.all_done  # they end now
        for worker in workers:
            worker.send_bye("finished")
        net.until(lambda: net.master.all_done)
        for worker in workers:
            worker.close()


def test_what_was_said_before_the_connection_stood_arrives() -> None:
    with link(1) as net:
        worker = net.worker(0)
        worker.send_ending({"by": "rank", "node": "w0", "reason": "at once"})
        worker.send_bye("failed")
        net.until(lambda: worker.acknowledged)
        assert net.heard["master"].of("ending")
        assert net.master.all_done


def test_the_clock_is_measured_and_a_jump_in_the_middle_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with link(1) as net:
        worker = net.worker(0)
        net.until(lambda: net.heard["w0"].of("clock"))
        ((offset, error),) = net.heard["w0"].of("clock")  # type: ignore[misc]
        assert 0 <= error < 10  # type: ignore[has-type]
        assert abs(offset) <= error + 0.001  # type: ignore[has-type]
        assert isinstance(worker, Worker)
        worker._round_trips.clear()
        monkeypatch.setattr(worker, "_ping", lambda: None)
        for sent, there, received in (
            (100.0, 50.5, 101.0),
            (102.0, 50.0, 60.0),
            (103.0, 53.1, 103.2),
        ):
            with monkeypatch.context() as clocks:
                clocks.setattr(time, "time", lambda now=received: now)
                worker._measure_clock(sent, there)  # the second: set back meanwhile
        assert min(worker._round_trips) == pytest.approx((0.1, 50.0))
        assert len(worker._round_trips) == 2
        worker.close()


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_during_the_run_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    with link(1) as net:
        worker, clocks = net.worker(0), net.heard["w0"]
        net.until(lambda: clocks.of("clock"))
        assert isinstance(worker, Worker)
        monkeypatch.setattr(worker, "_ping", lambda: None)

        def pongs(ahead: float) -> None:
            for _ in range(6):
                worker._measure_clock(time.time(), time.time() - ahead)

        pongs(jump)
        assert len(clocks.of("clock")) == 1, "a hostile master cannot fill the events"
        worker._measured_at -= 3
        pongs(0.5)
        assert len(clocks.of("clock")) == 1
        pongs(jump)
        assert clocks.of("clock")[-1][0] == pytest.approx(jump, abs=0.5)  # type: ignore[index]
        worker.close()


@pytest.mark.parametrize("wrong", ["token", "run's token", "another's", "certificate", "name"])
def test_nobody_else_is_let_in(wrong: str) -> None:
    with link(1, lost_after=1.0) as net:
        if wrong == "token":
            other = net.worker(0, token="guessed")
        elif wrong == "run's token":
            other = net.worker(0, token=IDENTITY.token)
        elif wrong == "another's":
            other = net.worker(0, token=node_token(IDENTITY.token, "w1"))
        elif wrong == "certificate":
            token = node_token(IDENTITY.token, "w0")
            other = net.worker(0, make_identity("lab-1"), token)
        else:
            net.names.append("stranger")
            net.heard["stranger"] = Heard()
            other = net.side("stranger", net.master.port, IDENTITY)
        net.until(lambda: any(h.of("lost") for n, h in net.heard.items() if n != "master"))
        assert net.master.missing == {"w0"}
        assert not net.heard["master"].all
        other.close()


def test_plain_bytes_and_a_silent_stranger_do_not_disturb_it() -> None:
    with link(1) as net, ExitStack() as stack:
        address = ("127.0.0.1", net.master.port)
        plain, short, _silent = (
            stack.enter_context(socket.create_connection(address)) for _ in range(3)
        )
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        short.close()
        net.worker(0)
        net.until(lambda: not net.master.missing)
        plain.setblocking(False)
        received = b""

        def hung_up() -> bool:
            nonlocal received
            try:
                part = plain.recv(1000)
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
            received += part
            return not part

        net.until(hung_up)
        assert b"{" not in received


def test_an_old_version_of_tls_is_refused() -> None:
    with link(1) as net:
        shake_hands(net, ssl.TLSVersion.TLSv1_2)
        for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            with pytest.raises(ssl.SSLError):
                shake_hands(net, old)


def shake_hands(net: Link, version: ssl.TLSVersion) -> None:
    """Connect to the master as one that speaks this version of TLS only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")  # OpenSSL offers old versions at no other level
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", net.master.port)) as connection,
        context.wrap_socket(connection, do_handshake_on_connect=False) as tls,
    ):
        tls.setblocking(False)

        def done() -> bool:
            try:
                tls.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            return True

        net.until(done)


STRANGE = [
    b"[]",
    b"5",
    b'{"hello": 5}',
    b'{"hello": {"token": "\\ud800", "node": "w0"}}',
    b'{"ending": {"by": "rank", "node": "w0", "reason": "forged"}}',
    b"[" * 60000,
    b"x" * 200000,
]


@pytest.mark.parametrize("line", STRANGE, ids=lambda line: repr(line[:24]))
def test_a_line_of_anything_by_anybody_does_not_disturb_it(line: bytes) -> None:
    with link(1) as net:
        stranger = socket.create_connection(("127.0.0.1", net.master.port))
        tls = client_context(IDENTITY.certificate).wrap_socket(
            stranger, do_handshake_on_connect=False
        )
        tls.setblocking(False)
        data, sent = line + b"\n", False
        for _ in range(100):
            net.run_once()
            try:
                sent = sent or bool(tls.send(data))
                if sent and not tls.recv(100):
                    break
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            except OSError:
                break
        assert sent
        tls.close()
        assert not net.heard["master"].all
        worker = net.worker(0)
        net.until(lambda: not net.master.missing)
        worker.close()


def test_who_sends_on_and_on_without_a_name_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_channel, "UNAUTHENTICATED_BYTES", 100)
    monkeypatch.setattr(master, "HELLO_SECONDS", 3600.0)
    with link(1) as net, socket.create_connection(("127.0.0.1", net.master.port)) as stranger:
        tls = client_context(IDENTITY.certificate).wrap_bio(ssl.MemoryBIO(), out := ssl.MemoryBIO())
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        stranger.sendall(out.read())  # nothing is wrong with it but its length
        net.until(lambda: len(net.loop._selector.get_map()) > 1)
        net.until(lambda: len(net.loop._selector.get_map()) == 1)
        assert not net.heard["master"].all


def test_a_worker_that_floods_the_link_is_read_at_a_low_rate_and_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_channel, "LINE_LIMIT", 1 << 10)
    monkeypatch.setattr(tls_channel, "BYTES_A_SECOND", 1 << 12)
    with link(2, lost_after=30.0) as net:
        loud, other = net.worker(0), net.worker(1)
        assert isinstance(loud, Worker)
        net.until(lambda: not net.master.missing and loud._welcome)
        assert isinstance(net.master, Master)
        assert loud._channel is not None
        channel, began = net.master._channels["w0"], time.monotonic()
        before = channel._received
        for _ in range(1 << 15):
            loud._channel._out += b"{}\n"
        loud._channel.send({})

        def two_rests() -> bool:
            assert channel._received - before <= (2 + time.monotonic() - began) * (5 << 10)
            return channel._received - before > 10 << 10

        net.until(two_rests)
        loud.send_ending({"by": "rank", "node": "w0", "reason": "why"})
        other.send_ending({"by": "rank", "node": "w1", "reason": "not behind the flood"})
        net.until(lambda: net.heard["master"].of("ending"))
        (first, *_) = net.heard["master"].of("ending")
        assert first == {"by": "rank", "node": "w1", "reason": "not behind the flood"}
        assert net.master._channels["w0"] is channel
        for worker in (loud, other):
            worker.close()


def test_a_broken_connection_is_made_again_and_costs_nothing() -> None:
    with link(1, lost_after=30.0) as net:
        worker = net.worker(0)
        net.until(lambda: not net.master.missing)
        assert isinstance(worker, Worker)
        for _ in range(2):
            net.until(lambda: worker._welcome)
            assert worker._channel is not None
            worker._channel._socket.shutdown(socket.SHUT_RDWR)
            net.until(lambda: not worker._welcome)
        worker.send_ending({"by": "rank", "node": "w0", "reason": "later"})
        net.until(lambda: net.heard["master"].of("ending"))
        assert not net.heard["master"].of("lost") + net.heard["w0"].of("lost")
        assert net.heard["master"].of("joined") == ["w0"]
        worker.close()


def test_an_ending_has_no_field_that_is_null() -> None:
    """Earlier versions refuse a grace that is."""
    ending = {"by": "rank", "node": "w0", "reason": "why"}
    for worker_ends in (True, False):
        with link(2) as net:
            workers = [net.worker(n) for n in range(2)]
            net.until(lambda: not net.master.missing)
            side = workers[0] if worker_ends else net.master
            side.send_ending({**ending, "grace": None, "rank": None})
            heard = net.heard["master" if worker_ends else "w1"]
            net.until(lambda heard=heard: heard.of("ending"))
            assert heard.of("ending") == [ending]


def test_an_ending_reaches_the_others_when_one_connection_breaks_under_it() -> None:
    with link(3) as net:
        workers = [net.worker(n) for n in range(3)]
        net.until(lambda: not net.master.missing)
        broken = workers[0]
        assert isinstance(broken, Worker)
        assert broken._channel is not None
        connection = broken._channel._socket
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.close()  # by a reset: the master's next send fails
        net.master.send_ending({"by": "rank", "node": "master", "reason": "why"})
        net.until(lambda: all(net.heard[name].of("ending") for name in ("w1", "w2")))
        net.live(0.2)
        assert not net.heard["master"].of("ending")
        for worker in workers[1:]:
            worker.close()


def test_a_worker_speaks_for_itself_alone() -> None:
    with link(2) as net:
        workers = [net.worker(0), net.worker(1)]
        net.until(lambda: not net.master.missing)
        workers[0].send_ending({"by": "rank", "node": "w1", "reason": "forged"})
        net.until(lambda: net.heard["w1"].of("ending"))
        for name in ("master", "w1"):
            (told,) = net.heard[name].of("ending")
            assert told == {"by": "rank", "node": "w0", "reason": "forged"}
        for worker in workers:
            worker.close()


def test_a_lost_worker_is_no_part_of_a_run_that_continues_until_it_joins_again() -> None:
    with link(1, lost_after=2.0) as net:
        first = net.worker(0)
        net.until(lambda: not net.master.missing)
        assert isinstance(net.master, Master)
        silent = net.master._channels["w0"]
        silent.last_received = time.monotonic() - 3
        net.master.change("w0", heard=silent.last_received)
        net.master._check_silence()
        assert net.heard["master"].of("lost") == ["w0"]
        net.live(1.0)  # it tries again and again
        assert "w0" not in net.master._channels
        assert net.heard["master"].of("joined") == ["w0"]
        net.until(lambda: net.heard["w0"].of("lost"))
        first.close()
        net.master.others["w0"] = net.master.others["w0"].admitted(0.0)
        again = net.worker(0)
        net.until(lambda: net.heard["master"].of("joined") == ["w0", "w0"])
        again.close()
        net.until(lambda: net.heard["master"].of("lost") == ["w0", "w0"])


def test_a_worker_that_comes_after_it_was_given_up_is_waited_for() -> None:
    """As a spare node does that is late: nobody would notice its loss."""
    with link(1, lost_after=2.0) as net:
        net.master.give_up_on_missing()
        assert net.master.all_done
        worker = net.worker(0)
        net.until(lambda: net.heard["master"].of("joined"))
        assert not net.master.all_done
        worker.close()
        net.until(lambda: net.heard["master"].of("lost") == ["w0"])


def test_a_lost_worker_that_returns_while_the_run_ends_hears_why() -> None:
    with link(1, lost_after=2.0) as net:
        worker = net.worker(0)
        net.until(lambda: not net.master.missing)
        assert isinstance(net.master, Master)
        net.master._channels["w0"].last_received = time.monotonic() - 3
        net.master.change("w0", heard=time.monotonic() - 3)
        net.master._check_silence()
        net.master.send_ending({"by": "lost", "node": "master", "reason": "why"})
        net.until(lambda: net.heard["w0"].of("ending"))
        worker.close()


def test_who_asks_without_reading_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_channel, "UNSENT_LIMIT", 65536)
    with link(1, lost_after=3600.0) as net:
        context = client_context(IDENTITY.certificate)
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(("127.0.0.1", net.master.port))
        tls = context.wrap_socket(plain, do_handshake_on_connect=False)
        tls.setblocking(False)
        hello = {"node": "w0", "token": node_token(IDENTITY.token, "w0")}
        data = json.dumps({"hello": hello}).encode() + b"\n" + b'{"ping": 1.0}\n' * 1000
        assert isinstance(net.master, Master)

        def flood() -> bool:
            nonlocal data
            try:
                tls.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError:
                return True
            data = b'{"ping": 1.0}\n' * 1000
            return False

        net.until(lambda: flood() or net.master.others["w0"].error != Peer(0).error)
        assert net.master.others["w0"].error == "it does not read"
        tls.close()


def test_one_ending_is_relayed_however_many_report_it() -> None:
    with link(3) as net:
        workers = [net.worker(n) for n in range(3)]
        net.until(lambda: not net.master.missing)
        for n, worker in enumerate(workers):
            worker.send_ending({"by": "rank", "node": f"w{n}", "reason": "why"})
        net.until(lambda: len(net.heard["master"].of("ending")) == 3)
        net.live(0.5)
        first = net.heard["master"].of("ending")[0]
        for n, worker in enumerate(workers):
            assert net.heard[f"w{n}"].of("ending") == [first]
            worker.close()


def test_what_fails_on_a_message_closes_its_channel_only(capfd: pytest.CaptureFixture[str]) -> None:
    with link(2) as net:
        workers = [net.worker(0), net.worker(1)]
        net.until(lambda: not net.master.missing)
        failures = iter([KeyError("a bug of ours")])

        def fail_once(message: dict[str, Any]) -> None:
            for failure in failures:
                raise failure
            net.heard["master"].all.append(("ending", message))

        net.heard["master"].peer_ending = fail_once  # type: ignore[method-assign]
        workers[0].send_ending({"by": "rank", "node": "w0", "reason": "why"})
        net.until(lambda: net.heard["w1"].of("ending"))
        net.until(lambda: net.heard["master"].of("ending"))  # said again when it is back
        assert not net.heard["master"].of("lost")
        for worker in workers:
            worker.close()
    assert "a bug of ours" in capfd.readouterr().err


def test_silence_is_loss_on_both_sides() -> None:
    with link(1, lost_after=1.0) as net:
        worker = net.worker(0)
        net.until(lambda: not net.master.missing)
        worker.close()
        net.until(lambda: net.heard["master"].of("lost") == ["w0"])
        assert net.master.acknowledged
    with link(1, lost_after=1.0) as net:
        worker = net.worker(0)
        net.until(lambda: not net.master.missing)
        net.master.close()
        worker.send_bye("finished")
        net.until(lambda: net.heard["w0"].of("lost") == ["master"])
        assert worker.acknowledged


ALONE: Any = {"nnodes": 1, "node_rank": 0, "workers": []}
FIRST_OF_TWO: Any = {"nnodes": 2, "node_rank": 0}


def test_a_run_on_one_node_has_nobody_to_hear() -> None:
    alone = connect(EventLoop(), ALONE, {}, Heard())
    assert alone.all_done
    assert not alone.missing


def test_a_python_without_ssl_is_named_on_several_nodes_and_enough_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("tls_channel", "master", "worker"):
        monkeypatch.delitem(sys.modules, f"clusterctl.node.peer_link.{name}")
    monkeypatch.setitem(sys.modules, "ssl", None)  # importing it fails, as without _ssl
    loop, said = EventLoop(), Heard()
    assert type(connect(loop, ALONE, {}, said)) is Peers
    with pytest.raises(OperationError, match="cannot encrypt the supervisors' link") as refused:
        connect(loop, FIRST_OF_TWO, {}, said)
    error = refused.value.head()["error"]
    assert error["kind"] == "python"
    assert error["message"].startswith(sys.executable)
    assert "with the ssl module" in error["hint"]


def test_workers_tell_how_long_their_ranks_are_quiet_and_hear_that_the_run_is_hung() -> None:
    with link() as net:
        assert isinstance(net.master, Master)
        net.heard["w0"].told = {"quiet": 7.5, "printed": True}
        net.heard["w1"].told = {"printed": False}
        assert net.master.lives == {"w0": None, "w1": None}  # nobody knows of them yet
        net.worker(0)
        net.until(lambda: net.master.lives["w0"])
        judgement = {"hung": True, "quiet_s": 7.5, "alarm": 1}
        net.master.send_hung(judgement)
        net.until(lambda: net.heard["w0"].of("hung") == [judgement])
        net.worker(1)  # comes later
        net.until(lambda: net.heard["w1"].of("hung") == [judgement] and net.master.lives["w1"])
        assert net.master.lives == {"w0": {"quiet": 7.5, "printed": True}, "w1": {"printed": False}}


def test_each_worker_hears_which_of_its_own_ranks_are_slow_until_they_no_longer_are() -> None:
    with link() as net:
        assert isinstance(net.master, Master)
        work = [[3, 60.0, 55.5, 50.0, 4, 0]]
        net.heard["w0"].told = {"quiet": 0.0, "printed": True, "work": work}
        slow = [{"rank": 3, "lost": 0.4, "sure": True}]
        net.master.send_slow({"w0": slow, "master": slow})
        net.worker(0)
        net.worker(1)
        net.until(lambda: net.heard["w0"].of("slow") and net.heard["w1"].of("slow"))
        assert (net.heard["w0"].of("slow")[-1], net.heard["w1"].of("slow")[-1]) == (slow, [])
        life = net.master.lives["w0"]
        assert life is not None
        assert life["work"] == work
        net.master.send_slow({})
        net.until(lambda: net.heard["w0"].of("slow")[-1] == [])


def test_a_worker_of_an_earlier_version_tells_nothing_of_its_ranks() -> None:
    with link(1) as net:
        net.worker(0)
        net.until(lambda: net.heard["w0"].of("clock"))  # some pings
        assert net.master.lives == {"w0": None}


AGAIN = {
    "attempt": 2, "checkpoint": "/c/checkpoint-4", "step": 4, "wait_s": 5.0, "why": "w", "go": True,
    "without": [], "joined": [],
}  # fmt: skip
AFTER = {
    "failures": [
        {"at": 9.0, "rank": 1, "exit_code": 137, "signal": 9, "oom": False, "lines": ["a"]}
    ],
    "stuck": False,
    "blame": "",
    "step": 4,
    "sight": {"workdir": "/w", "checkpoints": []},
    "check": {"clock": "", "xid": None},
    "unreached": [],
}


def test_a_worker_tells_what_is_after_an_attempt_and_hears_what_becomes_of_the_run() -> None:
    with link() as net:
        net.more = {"restart": {"max": 3}, "attempt": 1}
        net.replace_master()
        first, second = net.worker(0), net.worker(1)
        first.send_bye("failed", AFTER)
        second.send_bye("failed")
        net.until(lambda: net.master.all_done)
        told = {name: peer.after for name, peer in net.master.others.items()}
        assert told == {"w0": AFTER, "w1": None}, "the other's end is final"
        net.master.send_again(AGAIN)
        net.until(lambda: first.again == second.again == AGAIN)


def test_only_a_worker_that_is_left_out_hears_so_while_the_others_wait() -> None:
    with link() as net:
        first, second = net.worker(0), net.worker(1)
        net.until(lambda: not net.master.missing)
        net.master.dismiss({**AGAIN, "go": False, "without": ["w1"]})
        net.until(lambda: second.again)
        assert first.again is None


def of_attempts(net: Link, ours: int, theirs: int) -> Worker:
    """Return a worker of one attempt, whose master is of another one."""
    net.more = {"restart": {"max": 3}, "attempt": ours, "again": AGAIN}
    net.replace_master()
    net.more["attempt"] = theirs
    worker = net.worker(1)
    assert isinstance(worker, Worker)
    return worker


def test_a_worker_that_missed_the_next_attempt_hears_of_it_from_its_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(master, "HELLO_SECONDS", 0.3)
    with link() as net:
        worker = of_attempts(net, 2, 1)
        net.until(lambda: worker.again == AGAIN)
        assert "w0" not in net.heard["master"].of("joined")
        assert net.master.missing == {"w0", "w1"}
        # It is not admitted: such connections must not add up.
        net.until(lambda: worker._last_error == "it closed the connection", 5.0)


def test_a_stop_that_comes_between_two_attempts_ends_the_next_one() -> None:
    with link() as net:
        worker = of_attempts(net, 2, 1)
        worker.send_ending({"by": "stop", "reason": "enough", "node": "w1", "grace": None})
        net.until(lambda: bool(net.heard["master"].of("ending")))
        (told,) = net.heard["master"].of("ending")
        assert told == {
            "by": "stop", "node": "w1", "reason": "w1 ended between two attempts",
        }  # fmt: skip


def test_a_worker_that_is_ahead_waits_for_its_master() -> None:
    with link() as net:
        worker = of_attempts(net, 1, 2)
        net.until(lambda: worker._last_error != "no answer")
        assert worker.again is None
        assert net.heard["master"].all == []


def test_nodes_of_a_further_attempt_that_do_not_come_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(master, "RETURN_SECONDS", 0.0)
    with link(lost_after=0.5) as net:
        net.more = {"restart": {"max": 3}, "attempt": 2, "again": AGAIN}
        net.replace_master()
        net.until(lambda: len(net.heard["master"].of("lost")) == 2)


def test_a_stop_after_a_failure_reaches_the_others_once() -> None:
    with link() as net:
        first, second = net.worker(0), net.worker(1)
        first.send_ending({"by": "rank", "reason": "r", "node": "w1"})
        net.until(lambda: bool(net.heard["w1"].of("ending")))
        for worker in (first, second):
            worker.send_ending({"by": "stop", "reason": "s", "node": "x"})
        net.until(lambda: len(net.heard["master"].of("ending")) == 3)
        net.live(0.3)
        for name in ("w0", "w1"):
            told = net.heard[name].of("ending")
            assert [one["by"] for one in told] == ["rank", "stop"]  # type: ignore[index]


def test_a_master_that_left_after_its_end_is_not_silent() -> None:
    with link() as net:
        worker = net.worker(0)
        net.until(lambda: not worker.missing)
        worker._heard_at -= 60.0  # type: ignore[union-attr]
        assert [one["peer"] for one in worker.silent()] == ["master"]
        net.master.send_bye("failed")
        net.until(lambda: worker.others_over)
        worker._heard_at -= 60.0  # type: ignore[union-attr]
        assert worker.silent() == []
