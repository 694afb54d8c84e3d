"""Listeners that know a word: who connects and does not know it is somebody else's program."""

from __future__ import annotations

import _socket
import _thread
import errno
import os

from clusterctl.node.holders import holder_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

GREETING_SECONDS = 2.0
BACKLOG = 256


def halves(word: str) -> List[bytes]:
    """Return what the caller says and what the listener answers: an echo knows only one."""
    middle = len(word) // 2
    return [word[:middle].encode(), word[middle:].encode()]


class Listeners:
    """The listening sockets of this node, each served by a thread."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._sockets: List[_socket.socket] = []
        self._foreign: List[str] = []

    def listen(self, wanted: Dict[str, Any]) -> Dict[str, Any]:
        """Listen as asked.

        Args:
            wanted: `key`, `address`, `port` (0: any). A port that is given is bound on all
                addresses, as PyTorch's TCPStore does, so that what would disturb it is found.

        Returns:
            The same with the port that was bound, or `error` and `holder`.
        """
        family = _socket.AF_INET6 if ":" in wanted["address"] else _socket.AF_INET
        listener = _socket.socket(family, _socket.SOCK_STREAM)
        # As TCPStore: connections of an earlier run in TIME_WAIT do not matter.
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        address = "" if wanted["port"] else wanted["address"]
        try:
            listener.bind((address, wanted["port"]))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            holder = holder_of(wanted["port"]) if error.errno == errno.EADDRINUSE else ""
            return {
                **wanted,
                "port": None,
                "error": os.strerror(error.errno or 0),
                "holder": holder,
            }
        self._sockets.append(listener)
        _thread.start_new_thread(self._serve, (listener,))
        return {**wanted, "port": listener.getsockname()[1]}

    def foreign(self) -> List[str]:
        """Return the addresses that connected without knowing the word."""
        return sorted(set(self._foreign))

    def close(self) -> None:
        """Stop listening."""
        for listener in self._sockets:
            # close() alone leaves the port open while a thread waits in accept().
            try:  # noqa: SIM105  (start-up counts)
                listener.shutdown(_socket.SHUT_RDWR)
            except OSError:
                pass  # on some systems it is not connected
            listener.close()

    def _serve(self, listener: _socket.socket) -> None:
        while True:
            try:
                descriptor, peer = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
            except OSError:
                return
            connection = _socket.socket(fileno=descriptor)
            _thread.start_new_thread(self._greet, (connection, str(peer[0])))

    def _greet(self, connection: _socket.socket, peer: str) -> None:
        question, answer = halves(self._word)
        try:
            connection.settimeout(GREETING_SECONDS)
            said = b""
            while len(said) < len(question):
                part = connection.recv(len(question) - len(said))
                if not part:
                    break
                said += part
            if said == question:
                connection.sendall(answer + peer.encode() + b"\n")
            elif said:
                self._foreign.append(peer)
        except OSError:
            return  # it left, or says nothing: a port scanner, or a caller that has its answer
        finally:
            connection.close()
