"""How a way to a node fails: one exception inside this room, and one place that translates."""

from __future__ import annotations

import errno
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.transport.interface import Reply, State
from clusterctl.transport.local_limits import HINT, at_limit

logger = logging.getLogger(__name__)

WORDS_LIMIT = 500

_HOST_DOWN = {
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.ENETDOWN,
    errno.EADDRNOTAVAIL,
    errno.EACCES,  # a prohibiting route
    errno.EINVAL,
}


class TransportError(Exception):
    """The way to one node ended; becomes that node's `Reply` and never leaves this room."""

    def __init__(self, state: State, phase: str, words: str, hint: str = "") -> None:
        """Keep what the reply will say."""
        super().__init__(words)
        self.state = state
        self.phase = phase
        self.words = printable_words(words)
        self.hint = hint

    def reply(self, node: str, *, seconds: float = 0.0) -> Reply:
        """Return this failure as the node's reply."""
        return Reply(
            node=node,
            state=self.state,
            phase=self.phase,
            words=self.words,
            hint=self.hint,
            seconds=seconds,
        )


def unexpected_error(name: str, error: Exception) -> TransportError:
    """Turn a bug, or a limit of this machine, into the node's failure only."""
    if at_limit(error):
        return TransportError("lost", "connect", f"this machine is at a limit: {error}", HINT)
    logger.error("%s: unforeseen", name, exc_info=error)
    hint = "this is a bug in clusterctl; please report it with the lines above"
    return TransportError("bad-output", "connect", f"{type(error).__name__}: {error}", hint)


def printable_words(words: str | bytes) -> str:
    """Make a server's words printable: one line, no control sequence, of bounded length."""
    text = words.decode("utf-8", "backslashreplace") if isinstance(words, bytes) else words
    text = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|.)", "", text)
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    joined = "; ".join(lines)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)
    return shown if len(shown) <= WORDS_LIMIT else shown[: WORDS_LIMIT - 1] + "…"


@contextmanager
def translated(phase: str, target: str) -> Iterator[None]:
    """Turn the operating system's exceptions into `TransportError`, with the host attached.

    Raises:
        TransportError: in place of whatever `OSError` was raised inside.
    """
    try:
        yield
    except socket.gaierror as error:
        hint = f"correct the host's name in the inventory, or try: getent hosts {host_of(target)}"
        raise TransportError(
            "unreachable", "resolve", f"{target}: {error.strerror}", hint
        ) from error
    except UnicodeError as error:  # a name with an empty part, or one of more than 63 characters
        hint = "correct the host's name in the inventory or ssh_config"
        raise TransportError(
            "unreachable", "resolve", f"{target}: not a host's name", hint
        ) from error
    except ConnectionRefusedError as error:
        hint = "start sshd on the host, or correct `port` in the inventory"
        raise TransportError("refused", phase, f"{target}: Connection refused", hint) from error
    except TimeoutError as error:
        state: State = "unreachable" if phase == "connect" else "timeout"
        hint = (
            f"is the host up, and does a firewall drop the port? try: ping -c 3 {host_of(target)}"
        )
        raise TransportError(state, phase, f"{target}: no answer in time", hint) from error
    except (ConnectionError, EOFError) as error:
        words = str(error) or "connection closed"
        raise TransportError("lost", phase, f"{target}: {words}") from error
    except OSError as error:
        state = "unreachable" if error.errno in _HOST_DOWN else "lost"
        raise TransportError(state, phase, f"{target}: {error.strerror or error}") from error


def host_of(target: str) -> str:
    """Return the host of a `host:port` or `[host]:port`."""
    bracketed = re.fullmatch(r"\[(.*)\](:\d+)?", target)
    if bracketed:
        return bracketed[1]
    return target.rsplit(":", 1)[0] if target.count(":") == 1 else target
