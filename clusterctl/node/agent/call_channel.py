"""The node's end of one call: answers out, further requests in, and a heartbeat meanwhile."""

from __future__ import annotations

import _thread
import os
import sys

from clusterctl.wire import BadFrame, Message, read_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

HEARTBEAT_SECONDS = 2.0
"""A call that is silent for longer than a few of these has lost its node."""


class OperationError(Exception):
    """The operation cannot continue, and says why in a form that a program can read.

    It reaches the controller as the head key `error` of the last answer: the node did answer.
    """

    def __init__(self, kind: str, message: str, **details: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details

    def head(self) -> dict[str, Any]:
        """Return the head of the last answer."""
        return {"error": {**self.details, "kind": self.kind, "message": str(self)}}


class ControllerDisconnected(Exception):  # noqa: N818  (a state of the world, not a fault)
    """The controller has disconnected: nothing more can be sent to it."""


class CallChannel:
    """The two ends of the channel as frames; safe to send on from several threads."""

    def __init__(self, reader: BinaryIO, output: int) -> None:
        """Take the channel over: `reader` is unbuffered, `output` a descriptor."""
        self.reader = reader
        self.output = output
        self.receive_timeout_s: float | None = None
        """Seconds of silence after which `receive` takes the controller for lost; None: never."""
        self.disconnected = False
        """A send failed; a follower should end, a change should be completed."""
        self.outlived = False
        """What the operation detached ends with this process, which must stay for it."""
        self._sending = _thread.allocate_lock()
        self._ended = False
        self._rests = False
        self._heartbeat_running = _thread.allocate_lock()
        """Held for as long as the heartbeat must continue."""

    def send(self, message: Message) -> None:
        """Send one answer; raise ControllerDisconnected if none reads it."""
        with self._sending:
            self._write(message.encode())

    def send_and_rest(self, message: Message) -> None:
        """Send one answer, and no heartbeat until the controller's next message.

        Those of a thousand nodes that wait for each other keep a core busy.

        Raises:
            ControllerDisconnected: the controller does not read any more.
        """
        with self._sending:
            self._write(Message({**message.head, "rests": True}, message.body).encode())
            self._rests = True

    def receive(self) -> Message | None:
        """Wait for the controller's next message; None when it disconnected or sent its last."""
        try:
            return read_message(self)
        except (BadFrame, OSError):
            return None  # a cut connection ends within a frame; there is no receiver

    def read(self, count: int) -> bytes:
        """Return up to so many bytes from the controller, as `wire.read_message` asks for them.

        Raises:
            TimeoutError: none came within `receive_timeout_s`.
        """
        if self.receive_timeout_s is not None:
            import select  # noqa: PLC0415  (few calls are patient; the others start sooner)

            ready, _, _ = select.select([self.reader], [], [], self.receive_timeout_s)
            if not ready:
                raise TimeoutError
        data = self.reader.read(count)
        self._rests = False  # a long message may take longer than the controller waits for a sign
        return data

    def start_heartbeat(self) -> None:
        """Say every `HEARTBEAT_SECONDS` that this node lives, until `send_last`."""
        self._heartbeat_running.acquire()
        _thread.start_new_thread(self._heartbeat, ())

    def send_last(self, message: Message) -> None:
        """Send the last answer; no heartbeat follows it."""
        self._stop_heartbeat()
        self.send(Message({**message.head, "end": True}, message.body))

    def exec_program(self, argv: list[str]) -> None:
        """Become a program that speaks on the channel itself; OSError if it cannot be started."""
        with self._sending:
            self._stop_heartbeat()
            os.dup2(self.reader.fileno(), 0)
            os.dup2(self.output, 1)
            os.dup2(sys.stderr.fileno(), 2)
            os.execvp(argv[0], argv)  # noqa: S606  (argv as data, on purpose without a shell)

    def _stop_heartbeat(self) -> None:
        self._ended = True
        if self._heartbeat_running.locked():
            self._heartbeat_running.release()

    def _heartbeat(self) -> None:
        frame = Message({"beat": True}).encode()
        while not self._heartbeat_running.acquire(timeout=HEARTBEAT_SECONDS):
            with self._sending:
                if self._ended:
                    return
                if self._rests:
                    continue
                try:
                    self._write(frame)
                except ControllerDisconnected:
                    return

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.output, view) :]
        except OSError as error:
            self.disconnected = True
            raise ControllerDisconnected(str(error)) from error
