"""A node over SSH by paramiko: one connection, our own socket, our own judgement of its key."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paramiko

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.safe_text import printable_words
from clusterctl.transport import agent
from clusterctl.transport.agent_call import AgentCall
from clusterctl.transport.host_keys import HostKeyVerifier
from clusterctl.transport.interface import Call, Connection, Request, State, Timeouts
from clusterctl.transport.jump_hosts import ProxySocket
from clusterctl.transport.keys import Keyring, Offer
from clusterctl.transport.paramiko_stream import ChannelStream
from clusterctl.transport.ssh_config import Endpoint
from clusterctl.transport.stream import Stream
from clusterctl.transport.translate_errors import translated

BANNER_TRIES = 5
"""A server that drops us before its banner is at MaxStartups, which passes."""
RETRY_SECONDS = 0.4
"""Longest wait before the second try; doubled for each further one."""
SESSION_SECONDS = 3.0
"""How long a session that the server has no room for (MaxSessions) is asked for again.

Sessions that just ended still count there, and threads share a connection.
"""

logger = logging.getLogger(__name__)


class _Transport(paramiko.Transport):
    """paramiko's protocol, with the quick algorithms first."""

    # The elliptic ones take 3 ms of our time, the others up to 70, in Python and alone.
    _preferred_kex = (
        "curve25519-sha256@libssh.org",
        *(k for k in paramiko.Transport._preferred_kex if k != "curve25519-sha256@libssh.org"),  # type: ignore[attr-defined]  # noqa: SLF001
    )
    _preferred_ciphers = (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        *(c for c in paramiko.Transport._preferred_ciphers if "gcm" not in c),  # type: ignore[attr-defined]  # noqa: SLF001
    )
    # How often each connection's thread wakes for nothing: ten times a second by default.
    _active_check_timeout = 1.0
    key_exchange = ""
    """What the two sides agreed on first; paramiko forgets it."""

    farewell = ""
    """Why the server hung up, in its own words; paramiko only logs them."""

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

    def _parse_disconnect(self, m: paramiko.Message) -> None:
        m.get_int()
        self.farewell = printable_words(m.get_string())

    def _parse_kex_init(self, m: paramiko.Message) -> None:
        super()._parse_kex_init(m)  # type: ignore[misc]
        self.key_exchange = self.key_exchange or type(self.kex_engine).__name__


class ParamikoConnection(Connection):
    """One open, authenticated connection."""

    def __init__(
        self, node: Node, endpoint: Endpoint, transport: paramiko.Transport, timeouts: Timeouts
    ) -> None:
        """Take a transport over."""
        self.node = node
        self.endpoint = endpoint
        self.transport = transport
        self._timeouts = timeouts

    @property
    def alive(self) -> bool:
        """The connection stands, as far as is known: a cut link is noticed after 8 s."""
        return self.transport.is_active()

    def call(self, request: Request, *, timeout: float = math.inf) -> Call:
        """Start an operation on a channel of its own."""
        stream = self.run(agent.COMMAND)
        return AgentCall(self.node, stream, request, timeouts=self._timeouts, timeout=timeout)

    def run(self, command: str) -> Stream:
        """Start a command on a channel of its own.

        Raises:
            NodeError: the server opens no channel.
        """
        with _paramiko_translated("open", self.endpoint.target, self.transport):
            channel = self.transport.open_session(timeout=self._timeouts.handshake)
            channel.settimeout(self._timeouts.answer)
            channel.exec_command(command)
        return ChannelStream(channel, self.transport)

    def close(self) -> None:
        """Close the connection at once."""
        # Woken by the shutdown, paramiko's thread ends now, not at its next poll.
        with contextlib.suppress(OSError):
            self.transport.sock.shutdown(socket.SHUT_RDWR)
        self.transport.close()


def connect(
    node: Node,
    endpoint: Endpoint,
    *,
    dial: Callable[[], socket.socket],
    keyring: Keyring,
    trust: HostKeyVerifier,
    timeouts: Timeouts,
    slots: threading.Semaphore,
) -> ParamikoConnection:
    """Connect, check the host's key, log in.

    Args:
        node: whom to reach.
        endpoint: where it is.
        dial: opens the bytes' way there.
        keyring: whose keys to offer.
        trust: what judges the host's key.
        timeouts: the limit of each phase.
        slots: how many may be logging in at this endpoint at once.

    Raises:
        NodeError: it did not come to that.
    """
    offer = keyring.offer(endpoint)
    attempt = 0
    while True:
        attempt += 1
        try:
            with slots:
                transport = _handshake(endpoint, dial, trust, timeouts)
                try:
                    _log_in(endpoint, transport, offer)
                except BaseException:
                    transport.close()
                    raise
        except NodeError as failure:
            dropped = failure.state == "lost" and failure.phase == "banner"
            if not dropped or attempt == BANNER_TRIES or _PENALTY in failure.message:
                raise
            time.sleep(random.uniform(0.1, 1) * RETRY_SECONDS * 2**attempt)  # noqa: S311  (jitter)
        else:
            return ParamikoConnection(node, endpoint, transport, timeouts)


_PENALTY = "Not allowed at this time"
"""What sshd says to an address that it punishes (PerSourcePenalties); trying on makes it worse."""


def _handshake(
    endpoint: Endpoint,
    dial: Callable[[], socket.socket],
    trust: HostKeyVerifier,
    timeouts: Timeouts,
) -> _Transport:
    sock = dial()
    transport = _Transport(sock)
    transport.daemon = True
    transport.banner_timeout = timeouts.handshake
    transport.handshake_timeout = timeouts.handshake
    transport.auth_timeout = timeouts.auth
    known = trust.key_types(endpoint)
    transport.get_security_options().key_types = _ordered(
        transport.get_security_options().key_types, known
    )
    try:
        _negotiate(endpoint, transport, sock, timeouts)
        key = transport.get_remote_server_key()
        trust.check(endpoint, key.get_name(), key.asbytes())
    except BaseException:
        transport.close()
        sock.close()
        raise
    return transport


def _negotiate(
    endpoint: Endpoint, transport: _Transport, sock: socket.socket, timeouts: Timeouts
) -> None:
    negotiated = threading.Event()
    transport.start_client(event=negotiated)
    done = negotiated.wait(timeouts.handshake)
    phase = "kex" if transport.remote_version else "banner"
    if not done:
        words = f"{endpoint.target}: connected, then silent for {timeouts.handshake:.0f} s"
        hint = "is it sshd that listens there, and is the host overloaded?"
        raise NodeError("timeout", phase, words, hint)
    if not transport.is_active():
        raise _broken(endpoint, transport, sock, phase)
    if "Group" in transport.key_exchange or "Gex" in transport.key_exchange:
        found = transport.key_exchange
        logger.warning("%s: only a slow key exchange is offered (%s)", endpoint.target, found)


def _ordered(offered: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """Put the algorithms of keys that are known first, so that a known key is compared."""
    rank = {
        name: index
        for index, key_type in enumerate(known)
        for name in (("rsa-sha2-512", "rsa-sha2-256") if key_type == "ssh-rsa" else (key_type,))
    }
    return tuple(sorted(offered, key=lambda name: rank.get(name, len(rank))))


def _broken(
    endpoint: Endpoint, transport: paramiko.Transport, sock: socket.socket, phase: str
) -> NodeError:
    """Say why the handshake broke, in the server's own words where it had some."""
    if isinstance(sock, ProxySocket) and (failure := sock.failure()):
        return failure
    error = transport.get_exception()
    said = printable_words(getattr(sock, "first_bytes", b"")) if phase == "banner" else ""
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        hint = "update the server, or say `via: openssh`"
        return NodeError("refused", phase, f"{endpoint.target}: {error}", hint)
    if said and "SSH-" not in said and _PENALTY not in said and "MaxStartups" not in said:
        hint = "is it sshd that listens on this port?"
        return NodeError("bad-output", phase, f"{endpoint.target}: it said: {said}", hint)
    words = said or "the server closed the connection" + (f" ({error})" if str(error or "") else "")
    hint = "sshd there is at its limits (MaxStartups, PerSourcePenalties); see its log"
    return NodeError("lost", phase, f"{endpoint.target}: {words}", hint)


def _log_in(endpoint: Endpoint, transport: _Transport, offer: Offer) -> None:
    """Offer the keys, one after the other.

    Raises:
        NodeError: none opens.
    """
    tried: list[str] = []
    allowed = ["publickey"]
    with _paramiko_translated("auth", endpoint.target, transport):
        try:
            for candidate in offer.candidates:
                tried.append(candidate.origin)
                if _accepts(endpoint, transport, candidate.key):
                    return
            if not offer.candidates:
                # Some servers ask for nothing, their network vouches; others say what they want.
                transport.auth_none(endpoint.user)
                return
        except paramiko.BadAuthenticationType as error:
            allowed = error.allowed_types
        except ConnectionError:
            # A server that has had enough of our keys hangs up, and tells why.
            if not transport.farewell:
                raise
    raise _not_let_in(endpoint, offer, tried, allowed=allowed, farewell=transport.farewell)


def _not_let_in(
    endpoint: Endpoint, offer: Offer, tried: Sequence[str], *, allowed: Sequence[str], farewell: str
) -> NodeError:
    """Return the failure of a login: what was offered, what could not be, what to do."""
    words = f"{endpoint.user}@{endpoint.target}: "
    if farewell:
        untried = len(offer.candidates) - len(tried)
        words += f"the server hung up ({farewell}) after {', '.join(tried)}"
        words += f"; {untried} more not tried" if untried else ""
        hint = "name the right key: set `ssh: {identity: PATH}` in hosts.yaml, which goes first"
    elif tried:
        words += f"the server took none of: {', '.join(tried)}"
        hint = f"try: ssh-copy-id -p {endpoint.port} {endpoint.user}@{endpoint.hostname}"
    else:
        nothing = ", ".join(filter(None, (offer.agent, "" if offer.skipped else "none in ~/.ssh")))
        words += f"no key to offer ({nothing})" if nothing else "no key to offer"
        hint = "set `ssh: {identity: PATH}` in hosts.yaml, or add a key to the agent: ssh-add PATH"
    if offer.skipped:
        words += f"; not offered: {'; '.join(offer.skipped)}"
    if "publickey" not in allowed:
        words += f"; it asks for {', '.join(allowed)}"
        hint = "use a key, or set `via: openssh` if OpenSSH can log in without asking"
    return NodeError("auth", "auth", words, hint)


def _accepts(endpoint: Endpoint, transport: paramiko.Transport, key: paramiko.PKey) -> bool:
    """Say whether the server takes a key.

    Raises:
        BadAuthenticationType: it takes no keys, or wants more than a key.
        OSError: it did not answer.
    """
    try:
        more = transport.auth_publickey(endpoint.user, key)
    except paramiko.BadAuthenticationType:
        raise
    except paramiko.AuthenticationException as error:
        if "timeout" in str(error):
            raise TimeoutError from error
        if not transport.is_active():
            raise ConnectionError("the connection broke while logging in") from error
        return False
    if more:
        raise paramiko.BadAuthenticationType("a key is not enough", more)
    return True


@contextlib.contextmanager
def _paramiko_translated(phase: str, target: str, transport: paramiko.Transport) -> Iterator[None]:
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
        raise NodeError(state, phase, f"{target}: {error}") from error
