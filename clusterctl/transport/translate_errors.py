"""Turns what others raise into `NodeError`."""

import errno
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.errors import CouldNotTell, NodeError
from clusterctl.transport.interface import State
from clusterctl.transport.local_limits import HINT, at_limit

logger = logging.getLogger(__name__)

_HOST_DOWN = {
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.ENETDOWN,
    errno.EADDRNOTAVAIL,
    errno.EACCES,  # a prohibiting route
    errno.EINVAL,
}


LIMIT = "limit"
"""The phase of a node that lets the user start no more processes, or open no more files."""
_AT_LIMIT = re.compile(
    "[^\n;]*(?:annot fork|an't fork|start new thread|Resource temporarily unavailable"
    "|Too many open files)[^\n;]*"
)
_LIMIT_HINT = (
    "end processes of yours there, or raise the limit: nproc and nofile in"
    " /etc/security/limits.conf, TasksMax of user.slice, --pids-limit of a container"
)


def node_limit(words: str) -> NodeError | None:
    """Return the error of a node that is at a limit of this user's; None: other words."""
    found = _AT_LIMIT.search(words)
    return NodeError("lost", LIMIT, found[0].strip(), _LIMIT_HINT) if found else None


def unexpected_error(name: str, error: Exception) -> NodeError:
    """Turn a bug, or a limit of this machine, into the node's failure only."""
    if isinstance(error, CouldNotTell):
        return NodeError("lost", "connect", str(error), error.hint or "")
    if at_limit(error):
        return NodeError("lost", "connect", f"this machine is at a limit: {error}", HINT)
    logger.error("%s: unforeseen", name, exc_info=error)
    hint = "this is a bug in clusterctl; please report it with the lines above"
    return NodeError("bad-output", "connect", f"{type(error).__name__}: {error}", hint)


@contextmanager
def translated(phase: str, target: str) -> Iterator[None]:
    """Turn the operating system's exceptions into `NodeError`, with the host attached."""
    try:
        yield
    except socket.gaierror as error:
        hint = f"correct the host's name in the inventory, or try: getent hosts {host_of(target)}"
        raise NodeError("unreachable", "resolve", f"{target}: {error.strerror}", hint) from error
    except UnicodeError as error:  # a name with an empty part, or one of more than 63 characters
        hint = "correct the host's name in the inventory or ssh_config"
        raise NodeError("unreachable", "resolve", f"{target}: not a host's name", hint) from error
    except ConnectionRefusedError as error:  # a host that is off is silent: this one is up
        hint = "start sshd on the host, or correct `port` or the address in the inventory"
        raise NodeError("refused", phase, f"{target}: Connection refused", hint) from error
    except TimeoutError as error:
        state: State = "unreachable" if phase == "connect" else "timeout"
        hint = (
            f"is the host up, and does a firewall drop the port? try: ping -c 3 {host_of(target)}"
        )
        raise NodeError(state, phase, f"{target}: no answer in time", hint) from error
    except (ConnectionError, EOFError) as error:
        words = str(error) or "connection closed"
        raise NodeError("lost", phase, f"{target}: {words}") from error
    except OSError as error:
        state = "unreachable" if error.errno in _HOST_DOWN else "lost"
        raise NodeError(state, phase, f"{target}: {error.strerror or error}") from error


def host_of(target: str) -> str:
    """Return the host of a `host:port` or `[host]:port`."""
    bracketed = re.fullmatch(r"\[(.*)\](:\d+)?", target)
    if bracketed:
        return bracketed[1]
    return target.rsplit(":", 1)[0] if target.count(":") == 1 else target
