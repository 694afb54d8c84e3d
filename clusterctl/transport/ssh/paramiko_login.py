"""Logs in to nodes by paramiko: checks the host's key, then offers the person's keys."""

import logging
import random
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import paramiko
from paramiko.auth_handler import AuthHandler

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.safe_text import printable_words
from clusterctl.transport.concurrency_limit import Turn
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.ssh.control_master import TOUCH_SECONDS
from clusterctl.transport.ssh.host_keys import HostKeyVerifier
from clusterctl.transport.ssh.jump_hosts import ProxySocket
from clusterctl.transport.ssh.keys import Keyring, Offer, public_blob
from clusterctl.transport.ssh.paramiko_connection import (
    ParamikoConnection,
    Transport,
    paramiko_translated,
)
from clusterctl.transport.ssh.ssh_config import Endpoint, security_key

BANNER_TRIES = 5
"""A server that drops us before its banner is at MaxStartups, which passes."""
PARAMIKO_SECONDS = 10
"""How much longer than ours paramiko's own limits are, also on a busy machine."""
RETRY_SECONDS = 0.4
"""Longest wait before the second try; doubled for each further one."""
BANNER_SECONDS = 3.0
"""A login that waits longer shows what the server says."""
BANNER_LIMIT = 300
KLIST_SECONDS = 5.0
_NOT_SIGNED = "key cannot be used for signing"
"""What paramiko says if the agent refuses: the token was not touched, or the user declined."""
_BY_OPENSSH = "set `ssh: {via: openssh}` in hosts.yaml"
_PENALTY = "Not allowed at this time"
"""What sshd sends to an address that it punishes (PerSourcePenalties); each try makes it worse."""

InTurn = Callable[[Callable[[Turn], "ParamikoConnection"]], "ParamikoConnection"]

logger = logging.getLogger(__name__)


class ParamikoConnector:
    """Opens a command's connections by paramiko; safe from several threads.

    They share the keys.
    """

    def __init__(self, verifier: HostKeyVerifier, timeouts: Timeouts) -> None:
        """Prepare; a key is read when it is first offered."""
        self.keyring = Keyring()
        self._verifier = verifier
        self._timeouts = timeouts

    def connect(
        self, node: Node, endpoint: Endpoint, in_turn: InTurn, dial: Callable[[], socket.socket]
    ) -> ParamikoConnection:
        """Connect, check the host's key, log in; raise NodeError if one of these failed."""
        offer = self.keyring.offer(endpoint)

        def log_in(turn: Turn) -> ParamikoConnection:
            sock = dial()
            turn.accepted = True
            transport = self._handshake(endpoint, sock)
            try:
                _log_in(endpoint, transport, offer)
            except BaseException:
                transport.close()
                raise
            connection = ParamikoConnection(node, endpoint, transport, self._timeouts)
            connection.login_seconds = turn.seconds
            return connection

        attempt = 0
        while True:
            attempt += 1
            try:
                return in_turn(log_in)
            except NodeError as failure:
                dropped = failure.state == "lost" and failure.phase == "banner"
                if not dropped or attempt == BANNER_TRIES or _PENALTY in failure.message:
                    raise
                jitter = random.uniform(0.1, 1)  # noqa: S311  (no secret)
                time.sleep(jitter * RETRY_SECONDS * 2**attempt)

    def _handshake(self, endpoint: Endpoint, sock: socket.socket) -> Transport:
        transport = Transport(sock)
        transport.daemon = True
        # This limit must expire first: it has the better message.
        later = self._timeouts.handshake + PARAMIKO_SECONDS
        transport.banner_timeout = transport.handshake_timeout = later
        transport.auth_timeout = self._timeouts.auth
        options = transport.get_security_options()
        options.key_types = _ordered(options.key_types, self._verifier.key_types(endpoint))
        try:
            self._negotiate(endpoint, transport, sock)
            key = transport.get_remote_server_key()
            self._verifier.check(endpoint, key.get_name(), key.asbytes())
        except BaseException:
            transport.close()
            sock.close()
            raise
        return transport

    def _negotiate(self, endpoint: Endpoint, transport: Transport, sock: socket.socket) -> None:
        negotiated = threading.Event()
        transport.start_client(event=negotiated)
        done = negotiated.wait(self._timeouts.handshake)
        phase = "kex" if transport.remote_version else "banner"
        if not done:
            words = (
                f"{endpoint.target}: connected, then silent for {self._timeouts.handshake:.0f} s"
            )
            hint = "is it sshd that listens there, and is the host overloaded?"
            if endpoint.proxy_command is not None:
                hint = f"does ProxyCommand of ssh_config lead there? try: {_by_hand(endpoint)}"
                said = sock.words if isinstance(sock, ProxySocket) else ""
                words += f"; ProxyCommand prints: {printable_words(said)}" if said else ""
            raise NodeError("timeout", phase, words, hint)
        if not transport.is_active():
            raise _handshake_failure(endpoint, transport, sock, phase)
        found = transport.key_exchange
        if "Group" in found or "Gex" in found:
            logger.warning("%s: only a slow key exchange is offered (%s)", endpoint.target, found)


def _ordered(offered: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """Put the algorithms of keys that are known first, so that a known key is compared."""
    rank = {
        name: index
        for index, key_type in enumerate(known)
        for name in (("rsa-sha2-512", "rsa-sha2-256") if key_type == "ssh-rsa" else (key_type,))
    }
    return tuple(sorted(offered, key=lambda name: rank.get(name, len(rank))))


def _handshake_failure(
    endpoint: Endpoint, transport: Transport, sock: socket.socket, phase: str
) -> NodeError:
    """Return why the handshake broke, in the server's own words if it had some."""
    if isinstance(sock, ProxySocket) and (failure := sock.failure()):
        return failure
    error = transport.get_exception()
    banner = printable_words(getattr(sock, "first_bytes", b"")) if phase == "banner" else ""
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        hint = "update the server, or say `via: openssh`"
        return NodeError("refused", phase, f"{endpoint.target}: {error}", hint)
    if banner and not any(known in banner for known in ("SSH-", _PENALTY, "MaxStartups")):
        hint = "is it sshd that listens on this port?"
        return NodeError("bad-output", phase, f"{endpoint.target}: it said: {banner}", hint)
    words = banner or "the server closed the connection" + (
        f" ({error})" if str(error or "") else ""
    )
    hint = f"try: {_by_hand(endpoint)}"
    if endpoint.proxy_command is not None:
        words = f"ProxyCommand of ssh_config: {words}"
    elif phase == "banner":
        hint = "sshd there is at its limits (MaxStartups, PerSourcePenalties); see its log"
    return NodeError("lost", phase, f"{endpoint.target}: {words}", hint)


def _by_hand(endpoint: Endpoint) -> str:
    """Return the command that logs in by OpenSSH alone, and prints its steps."""
    login = ["-p", str(endpoint.port), "-l", endpoint.user]
    return shlex.join(["ssh", "-v", *login, endpoint.host, "true"])


class LoginHandler(AuthHandler):
    """paramiko's side of a login; shows the server's banner if the login waits."""

    def __init__(self, endpoint: Endpoint, transport: Transport) -> None:
        """Take a transport over whose host key was checked."""
        super().__init__(transport)
        self._endpoint = endpoint
        self._shown = False
        transport.auth_handler = self

    @property
    def words(self) -> str:
        """What the server has sent for the person to read, as one safe line."""
        return printable_words(self.banner or b"")[:BANNER_LIMIT]

    def ask(self, begin: Callable[[threading.Event], None], *, touch: str = "") -> list[str]:
        """Send one request for a login; return what else the server asks for.

        Args:
            touch: what the person may have to do meanwhile.

        Raises:
            AuthenticationException: the server refuses, or does not answer.
        """
        answered = threading.Event()
        begin(answered)
        if not answered.wait(BANNER_SECONDS):
            # The words may hold what the person has to do, such as a URL to open.
            said = "; ".join(filter(None, ("" if self._shown else self.words, touch)))
            if said:
                logger.warning("%s: waits to log in: %s", self._endpoint.target, said)
            self._shown = self._shown or bool(self.words)
        try:
            more: list[str] = self.wait_for_response(answered)
        except Exception as error:  # noqa: BLE001  (raised again)
            # Its frame holds the error, and so all frames of this thread: garbage of 13 KB.
            raise error.with_traceback(None)  # noqa: B904  (the same one)
        return more


def _log_in(endpoint: Endpoint, transport: Transport, offer: Offer) -> None:
    """Ask to be let in without a key, as OpenSSH does, then offer the keys one after the other."""
    handler = LoginHandler(endpoint, transport)
    tried: list[str] = []
    allowed: Sequence[str] = ()
    try:
        with paramiko_translated("auth", endpoint.target, transport):
            try:
                # Some servers need no key, as their network is safe; others name what they need.
                handler.ask(partial(handler.auth_none, endpoint.user))
            except paramiko.BadAuthenticationType as error:
                allowed = error.allowed_types
            else:
                return
            try:
                if "publickey" in allowed and _one_opens(
                    endpoint, transport, handler, offer, tried
                ):
                    return
            except paramiko.BadAuthenticationType as error:
                allowed = error.allowed_types
            except ConnectionError:
                # Beyond MaxAuthTries a server hangs up, and sends why.
                if not transport.disconnect_reason:
                    raise
        raise _auth_failure(endpoint, offer, tried, allowed, transport.disconnect_reason)
    except NodeError as failure:
        if not handler.words:
            raise
        words = f"{failure.message}; the server says: {handler.words}"
        raise NodeError(failure.state, failure.phase, words, failure.hint) from failure


def _one_opens(
    endpoint: Endpoint,
    transport: Transport,
    handler: LoginHandler,
    offer: Offer,
    tried: list[str],
) -> bool:
    """Offer the keys one after the other; say whether the server takes one.

    Raises:
        NodeError: the agent does not sign.
        BadAuthenticationType: the server wants more than a key.
        OSError: it did not answer.
    """
    for candidate in offer.candidates:
        tried.append(candidate.origin)
        try:
            if _accepts(endpoint, transport, handler, candidate.key):
                return True
        except paramiko.SSHException as error:
            if str(error) != _NOT_SIGNED:
                raise
            words = f"{endpoint.user}@{endpoint.target}: no signature by {candidate.origin}"
            hint = "touch the security key in time, or allow the agent to sign; then try again"
            raise NodeError("auth", "auth", words, hint) from error
    return False


def _auth_failure(
    endpoint: Endpoint, offer: Offer, tried: Sequence[str], allowed: Sequence[str], reason: str
) -> NodeError:
    """Return the failure of a login: what was offered, what could not be, what to do."""
    words = f"{endpoint.user}@{endpoint.target}: "
    if reason:
        untried = len(offer.candidates) - len(tried)
        words += f"the server hung up ({reason}) after {', '.join(tried)}"
        words += f"; {untried} more not tried" if untried else ""
        hint = "name the right key: set `ssh: {identity: PATH}` in hosts.yaml, which goes first"
    elif tried:
        words += f"the server took none of: {', '.join(tried)}"
        target = f"{endpoint.user}@{endpoint.hostname}"
        command = shlex.join(["ssh-copy-id", "-p", str(endpoint.port), target])
        hint = f"correct `user` in the inventory, or try: {command}"
    elif "publickey" not in allowed:
        words, hint = f"{words}the server takes no keys", ""
    else:
        nothing = ", ".join(filter(None, (offer.agent, "" if offer.skipped else "none in ~/.ssh")))
        words += f"no key to offer ({nothing})" if nothing else "no key to offer"
        hint = "set `ssh: {identity: PATH}` in hosts.yaml, or add a key to the agent: ssh-add PATH"
    if offer.skipped:
        words += f"; not offered: {'; '.join(offer.skipped)}"
    if "publickey" not in allowed:
        words += f"; it asks for {', '.join(filter(None, allowed)) or 'nothing that is known'}"
        hint = "use a key, or set `via: openssh` if OpenSSH can log in without asking"
    return NodeError("auth", "auth", words, _what_openssh_can(endpoint, offer, allowed) or hint)


def _what_openssh_can(endpoint: Endpoint, offer: Offer, allowed: Sequence[str]) -> str:
    """Return the hint for a login that paramiko cannot do; empty for others."""
    token = security_key(endpoint)
    offered = {candidate.key.asbytes() for candidate in offer.candidates}
    if token and "publickey" in allowed and public_blob(token) not in offered:
        return f"OpenSSH can use your security key ({token}): {_BY_OPENSSH}"
    if not any(method.startswith("gssapi") for method in allowed):
        return ""
    # Many servers offer it although no user has a ticket, so a ticket decides.
    if endpoint.gssapi and _has_ticket():
        return f"OpenSSH can use your Kerberos ticket: {_BY_OPENSSH}"
    if "publickey" in allowed:
        return ""
    setting = "" if endpoint.gssapi else " and GSSAPIAuthentication yes in ssh_config"
    return f"kinit, then {_BY_OPENSSH}{setting}"


def _has_ticket() -> bool:
    """Say whether the person has a Kerberos ticket that is valid."""
    if shutil.which("klist") is None:
        return False
    try:
        argv = ["klist", "-s"]
        return subprocess.run(argv, timeout=KLIST_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _accepts(
    endpoint: Endpoint, transport: Transport, handler: LoginHandler, key: paramiko.PKey
) -> bool:
    """Say whether the server takes a key.

    Raises:
        BadAuthenticationType: it takes no keys, or wants more than a key.
        OSError: it did not answer.
    """
    touch = ""
    if key.get_name().startswith("sk-"):
        touch = "touch your security key if it blinks"
        transport.auth_timeout = max(transport.auth_timeout, TOUCH_SECONDS)
    try:
        more = handler.ask(partial(handler.auth_publickey, endpoint.user, key), touch=touch)
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
