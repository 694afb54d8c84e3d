"""The control socket: the lock that a supervisor holds, on which it answers requests.

A rank, another run or an operation connects and sends one line: `ask`, and what belongs to it.
The supervisor sends one line back and closes; to what it cannot read it answers nothing.
The asker is `node.run_lock.query`, perhaps of another version or user; lines are those of `wire`.

Anyone may ask who holds it; only the same user and root learn more than that and may ask more.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, Callable, Dict, List, Sequence

from clusterctl.node import run_lock
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.listener import MAX_ACCEPTS, Listener, UnauthenticatedPeers
from clusterctl.node.run_lock import LINE_LIMIT, PeerProcess
from clusterctl.wire import decode_line, encode_line

PUBLIC = ("run", "user", "since", "holds", "workdir_id")
"""What other users learn about the holder."""
NO_FOLDER = "/.clusterctl-%s"
"""What they get as its folder: earlier versions take a run without one for one in theirs."""
BACKLOG = 128
MAX_UNAUTHENTICATED = 2 * MAX_ACCEPTS
"""How many connections may wait to ask: no rank's is closed before its turn to be heard."""


class ControlSocket:
    """The lock, held: a process that connects to it asks its supervisor."""

    def __init__(self, name: str, held: Sequence[int] = ()) -> None:
        """Take the lock, or `held`, sockets that another process left us; OSError if it is held."""
        self._sockets: List[socket.socket] = [socket.socket(fileno=each) for each in held]
        for own in self._sockets:
            own.setblocking(False)
            own.listen(BACKLOG)  # from now on, who asks sees this process at the other end
        if held:
            return
        try:
            for each in run_lock.sockets(name):
                self._hold(each)
            if run_lock.resources_of(name):
                self._hold_slot(run_lock.machine_of(name))
        except OSError:
            self.release()
            raise

    @property
    def descriptors(self) -> List[int]:
        """The sockets that are held."""
        return [own.fileno() for own in self._sockets]

    def _hold(self, name: str) -> None:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(own)
        own.bind("\0" + name)
        own.listen(BACKLOG)
        own.setblocking(False)

    def _hold_slot(self, machine: str) -> None:
        for slot in run_lock.slots(machine):
            try:
                return self._hold(slot)
            except OSError as error:
                self._sockets.pop().close()
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    def release(self) -> None:
        """Close the sockets that are held."""
        for own in self._sockets:
            own.close()

    @classmethod
    def acquire(cls, name: str) -> ControlSocket:
        """Take the lock, or name the run that excludes this one.

        Raises:
            OperationError: `busy`: a run has this machine, or GPUs of it; `holder` names it.
        """
        for _ in range(2):
            control_socket, others = None, run_lock.conflicting_sockets(name)
            try:
                control_socket = cls(name)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                others = [rival for rival in others if rival not in run_lock.sockets(name)]
            # After this run's are held: of two that check at the same time each sees the other.
            holder = next(run_lock.lock_holders(others), None)
            if holder is None and control_socket is not None:
                return control_socket
            if control_socket is not None:
                control_socket.release()
            if holder is not None:
                raise run_lock.in_use_error(holder)
        raise run_lock.in_use_error({})

    def serve(
        self,
        loop: EventLoop,
        who: Dict[str, Any],
        on_request: Callable[[Dict[str, Any], PeerProcess], Dict[str, Any]],
    ) -> None:
        """Answer everyone who asks, from now on.

        Anyone may ask `who`; `on_request` answers this user's and root's other requests.
        """

        def serve(request: Dict[str, Any], peer: PeerProcess) -> Dict[str, Any]:
            if request.get("ask") == "who":
                if peer.is_other_user:
                    known = {name: who[name] for name in PUBLIC if name in who}
                    if "workdir_id" in known:
                        known["workdir"] = NO_FOLDER % known["workdir_id"]
                    return known
                return who
            if peer.is_other_user:
                return {"error": "only uid %d and root may ask that" % os.getuid()}
            return on_request(request, peer)

        self._loop, self._serve = loop, serve
        self._unauthenticated = UnauthenticatedPeers(
            loop, most=MAX_UNAUTHENTICATED, seconds=run_lock.ANSWER_SECONDS
        )
        for own in self._sockets:
            Listener(loop, own, self._on_connection)

    def _on_connection(self, connection: socket.socket, _address: str) -> None:
        answer = b""

        def read() -> bool:
            nonlocal answer
            answer = self._answer(connection)
            return True

        def write() -> None:
            self._write(connection, answer)

        self._unauthenticated.greet(connection, PeerProcess.of(connection).uid, read, write)

    def _answer(self, connection: socket.socket) -> bytes:
        # A request is one write of one short line to a local socket: it arrives whole.
        try:
            peer = PeerProcess.of(connection)
            request = decode_line(connection.recv(LINE_LIMIT))
            return encode_line(self._serve(request, peer))
        except (OSError, ValueError):
            pass  # it disconnected, or is another user's, who may not fill the log
        except Exception:  # noqa: BLE001  (no question may end the run; the log has it)
            import traceback  # noqa: PLC0415  (start-up counts)

            traceback.print_exc()
        return b""

    def _write(self, connection: socket.socket, data: bytes) -> None:
        """Send an answer, as fast as it is read, and close."""
        unsent = memoryview(data)

        def close() -> None:
            deadline.cancel()
            self._loop.remove_descriptor(connection.fileno())
            connection.close()

        def write() -> None:
            nonlocal unsent
            try:
                unsent = unsent[connection.send(unsent) :] if unsent else unsent
            except BlockingIOError:
                return
            except OSError:
                unsent = memoryview(b"")  # it disconnected
            if not unsent:
                close()

        deadline = self._loop.call_later(run_lock.ANSWER_SECONDS, close)
        self._loop.add_descriptor(connection.fileno(), write, write=True)
        write()
