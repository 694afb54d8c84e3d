"""A command on a channel of a paramiko connection, as a stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import paramiko

from clusterctl.safe_text import printable_words
from clusterctl.transport.stream import EXIT_SECONDS, ExitInfo, Stream

RECEIVE_SIZE = 1 << 21
"""Bytes taken from paramiko at once, all that its window holds; it moves what it keeps."""
GATHER_FROM = 1 << 14
GATHER_SECONDS = 0.004
"""Where so many bytes came at once more follow; waking up for each packet costs more than them."""
SEND_SIZE = 1 << 16
"""Bytes handed to paramiko at once; it copies what it does not send."""


class ChannelStream(Stream):
    """A command on a channel of a connection."""

    def __init__(self, channel: paramiko.Channel, transport: paramiko.Transport) -> None:
        """Take over a channel whose command runs."""
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
        with _as_the_systems():
            data = self._channel.recv(RECEIVE_SIZE)
            self._drain()
        self._much = len(data) >= GATHER_FROM
        return data

    def send(self, data: bytes, timeout: float) -> None:
        """Send all of the bytes to its stdin."""
        deadline = time.monotonic() + timeout
        view = memoryview(data)
        with _as_the_systems():
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
            # No end from over there: paramiko closes the channels of a broken way first.
            self._transport.join(EXIT_SECONDS)
        if not self._transport.is_active():
            cause = printable_words(
                str(self._transport.get_exception() or "the connection was closed")
            )
            return ExitInfo(connected=False, errors=bytes(self._errors), cause=cause)
        # -1 stands for no status at all and for an end by a signal.
        code = self._channel.exit_status if self._channel.exit_status >= 0 else None
        return ExitInfo(connected=True, exit_code=code, errors=bytes(self._errors))

    def close(self) -> None:
        """Close the channel; what runs there detached lives on."""
        with contextlib.suppress(Exception):  # a dead connection's channel may raise anything
            self._channel.close()

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
def _as_the_systems() -> Iterator[None]:
    """Turn what paramiko raises into an `OSError`.

    That is `SSHException` where keys are not exchanged anew in time, and `EOFError` where the
    connection broke while a packet was sent.
    """
    try:
        yield
    except (paramiko.SSHException, EOFError) as error:
        raise ConnectionError(str(error) or "the connection was closed") from error
