"""A node over SSH by paramiko: one connection, each command a stream on a channel of it."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar

import paramiko
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.safe_text import printable_words
from clusterctl.transport import agent
from clusterctl.transport.connection import Connection
from clusterctl.transport.interface import State, Timeouts
from clusterctl.transport.local_limits import start_thread
from clusterctl.transport.ssh.ssh_config import Endpoint
from clusterctl.transport.ssh.ssh_limits import Packetizer, within_window
from clusterctl.transport.stream import EXIT_SECONDS, ExitInfo, Stream
from clusterctl.transport.translate_errors import translated

SESSION_SECONDS = 3.0
"""How long a session that the server has no room for (MaxSessions) is asked for again.

Sessions that just ended still count there, and threads share a connection.
"""
RECEIVE_SIZE = 1 << 21
"""Bytes taken from paramiko at once, all that its window holds; it moves what it keeps."""
GATHER_FROM = 1 << 14
GATHER_SECONDS = 0.004
"""Where so many bytes came at once more follow; waking up for each packet costs more than them."""
SEND_SIZE = 1 << 16
"""Bytes handed to paramiko at once; it copies what it does not send."""


class BriefThreads:
    """A key exchange whose steps run in threads of their own.

    Each thread that makes a key keeps random state of OpenSSL's and deep stack, 25 KB, until it
    ends, and a transport's ends with the connection.
    """

    def __init__(self, engine: Any) -> None:  # noqa: ANN401  (one of paramiko's)
        self._engine = engine
        self.hash_algo = engine.hash_algo

    def start_kex(self) -> None:
        """Begin."""
        _in_brief_thread(self._engine.start_kex)

    def parse_next(self, kind: int, message: paramiko.Message) -> None:
        """Continue with what the server sent."""
        _in_brief_thread(partial(self._engine.parse_next, kind, message))


def _in_brief_thread(step: Callable[[], object]) -> None:
    done: Future[None] = Future()

    def run() -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001  (raised again in the thread that waits)
            done.set_exception(error)
        else:
            done.set_result(None)

    start_thread(run, name="key exchange")
    done.result()


class Transport(paramiko.Transport):
    """paramiko's protocol, with the quick ciphers first, and limits."""

    _preferred_ciphers = (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        *(c for c in paramiko.Transport._preferred_ciphers if "gcm" not in c),  # type: ignore[attr-defined]  # noqa: SLF001
    )
    _channel_handler_table: ClassVar = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_DATA: within_window(paramiko.Channel._feed),  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_EXTENDED_DATA: within_window(paramiko.Channel._feed_extended),  # type: ignore[attr-defined]  # noqa: SLF001
    }
    # How often each connection's thread wakes for nothing: ten times a second by default.
    _active_check_timeout = 10.0
    key_exchange = ""
    """What the two sides agreed on first; paramiko forgets it."""
    disconnect_reason = ""
    """Why the server hung up, in its own words; paramiko only logs them."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a socket over."""
        super().__init__(sock, packetizer_class=Packetizer)

    @property
    def why_closed(self) -> str:
        """What ended the connection; several may ask, unlike with `get_exception`."""
        return printable_words(str(self.saved_exception or "the connection was closed"))

    def open_session(self, *args: Any, **options: Any) -> paramiko.Channel:  # noqa: ANN401  (paramiko's)
        """Open a session; wait a little for room if the server has none."""
        until = time.monotonic() + SESSION_SECONDS
        while True:
            try:
                return super().open_session(*args, **options)
            except paramiko.ChannelException as error:
                # OpenSSH's answer beyond MaxSessions: RFC 4254's SSH_OPEN_CONNECT_FAILED.
                no_room = error.code == paramiko.common.OPEN_FAILED_CONNECT_FAILED
                if not no_room or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """Close the connection at once: woken by the shutdown, its thread ends now."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        super().close()

    def _parse_disconnect(self, m: paramiko.Message) -> None:
        m.get_int()
        self.disconnect_reason = printable_words(m.get_string())

    def _parse_kex_init(self, m: paramiko.Message) -> None:
        super()._parse_kex_init(m)  # type: ignore[misc]
        self.key_exchange = self.key_exchange or type(self.kex_engine).__name__
        self.kex_engine = BriefThreads(self.kex_engine)


class ParamikoConnection(Connection):
    """One open, authenticated connection."""

    def __init__(
        self, node: Node, endpoint: Endpoint, transport: Transport, timeouts: Timeouts
    ) -> None:
        super().__init__(node, timeouts)
        self._endpoint = endpoint
        self.transport = transport

    @property
    def alive(self) -> bool:
        """The connection stands, as far as is known: a cut link is noticed after 8 s."""
        return self.transport.is_active()

    def start_agent(self) -> Stream:
        """Start the agent on a channel of its own."""
        with paramiko_translated("open", self._endpoint.target, self.transport):
            channel = self.transport.open_session(timeout=self._timeouts.handshake)
            channel.settimeout(self._timeouts.answer)
            channel.exec_command(agent.COMMAND)
        return ChannelStream(channel, self.transport)

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()


class ChannelStream(Stream):
    """A command on a channel of a connection."""

    def __init__(self, channel: paramiko.Channel, transport: Transport) -> None:
        self._channel = channel
        self._transport = transport
        self._errors = bytearray()
        self._much = False
        """Much came the last time."""

    def receive(self, timeout: float) -> bytes:
        """Return the next bytes of its stdout; stderr is drained along, for they share a window."""
        if self._much:
            time.sleep(GATHER_SECONDS)
        self._channel.settimeout(max(timeout, 0.001))
        with _as_the_systems(self._transport):
            data = self._channel.recv(RECEIVE_SIZE)
            self._drain()
        self._much = len(data) >= GATHER_FROM
        return data

    def send(self, data: bytes, timeout: float) -> None:
        """Send all of the bytes to its stdin."""
        deadline = time.monotonic() + timeout
        view = memoryview(data)
        with _as_the_systems(self._transport):
            while view:
                self._wait_for_room(deadline)
                sent = self._channel.send(bytes(view[:SEND_SIZE]))
                if not sent:
                    raise BrokenPipeError
                view = view[sent:]

    def ending(self) -> ExitInfo:
        """Say how it ended."""
        self._channel.status_event.wait(EXIT_SECONDS)
        self._drain()
        if not self._channel.eof_received:
            # The node did not end it: paramiko closes the channels of a broken connection first.
            self._transport.join(EXIT_SECONDS)
        if not self._transport.is_active():
            cause = self._transport.why_closed
            return ExitInfo(connected=False, errors=bytes(self._errors), cause=cause)
        # -1 stands for no status at all and for an end by a signal.
        code = self._channel.exit_status if self._channel.exit_status >= 0 else None
        return ExitInfo(connected=True, exit_code=code, errors=bytes(self._errors))

    def close(self) -> None:
        """Close the channel; what runs there detached lives on."""
        with contextlib.suppress(Exception):  # a dead connection's channel may raise anything
            self._channel.close()
            # paramiko keeps a channel until the server closes it too.
            self._channel.in_buffer.empty()
            self._channel.in_stderr_buffer.empty()

    def _wait_for_room(self, deadline: float) -> None:
        """Wait until the node takes more; the channel's own timeout belongs to who receives."""
        channel = self._channel
        with channel.out_buffer_cv:
            while not (channel.out_window_size or channel.closed or channel.eof_sent):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                channel.out_buffer_cv.wait(left)

    def _drain(self) -> None:
        while self._channel.recv_stderr_ready():
            self._errors += self._channel.recv_stderr(1 << 16)
            del self._errors[: -(1 << 16)]


@contextlib.contextmanager
def _as_the_systems(transport: Transport) -> Iterator[None]:
    """Turn what paramiko raises into an `OSError`.

    That is `SSHException` where keys are not exchanged again in time, and `EOFError` where the
    connection broke while a packet was sent, which receiving does too: the transport knows why.
    """
    try:
        yield
    except (paramiko.SSHException, EOFError) as error:
        if not str(error):
            transport.join(EXIT_SECONDS)  # it is about to say why
        raise ConnectionError(str(error) or transport.why_closed) from error


@contextlib.contextmanager
def paramiko_translated(phase: str, target: str, transport: paramiko.Transport) -> Iterator[None]:
    """Turn what paramiko raises into `NodeError`, with the host attached."""
    try:
        with translated(phase, target):
            yield
    except paramiko.ChannelException as error:
        hint = "sshd there allows too few sessions (MaxSessions), or no commands"
        raise NodeError("refused", phase, f"{target}: {error.text}", hint) from error
    except paramiko.SSHException as error:
        if not transport.is_active():
            raise NodeError("lost", phase, f"{target}: {error}") from error
        state: State = "timeout" if "imeout" in str(error) else "lost"
        hint = ""
        if "Channel closed" in str(error):  # by a server that could not fork
            hint = (
                "sshd could not start your shell: journalctl -u ssh (on the node, as root) says why"
            )
        raise NodeError(state, phase, f"{target}: {error}", hint) from error
