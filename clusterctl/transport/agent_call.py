"""One operation of the agent over any stream: what came, how it ended."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from clusterctl.errors import OLDER, OPERATION, NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.transport import agent
from clusterctl.transport.interface import Call, Reply, Request, Timeouts
from clusterctl.transport.pace import SMALL, Pace
from clusterctl.transport.stream import ExitInfo, Stream
from clusterctl.transport.translate_errors import node_limit
from clusterctl.wire import BadFrame, CutFrame, Message, encode_head, plain, read_message

NOISE_LIMIT = 4 * 1024 * 1024
"""Bytes that a login shell may print before the agent's marker."""
JSON_LIMIT = 16 * 1024 * 1024
JSON_RATE = 64 * 1024
"""Bytes of JSON that a node may answer with at once, and a second: to read it takes long.

What comes in small parts has a pace of its own.
"""
SLOWEST_RATE = 4096
"""Bytes of a message a second that a node must take: many may have one slow uplink."""
JSON_SHARE = 8
"""It may be one in so many of the other bytes, too."""

logger = logging.getLogger(__name__)


class Stayed(NamedTuple):
    """An agent that waits for another request."""

    stream: Stream
    marker: bytes
    since: float
    known: frozenset[str]
    """The operations that it was asked for: it has their modules."""


class AgentCall(Call):
    """A call that speaks the frames of `wire` on a `Stream`."""

    def __init__(
        self,
        node: Node,
        stream: Stream,
        request: Request,
        *,
        timeouts: Timeouts,
        timeout: float = math.inf,
        stayed: Stayed | None = None,
        keep: Callable[[Stayed], object] | None = None,
    ) -> None:
        """Send the agent and the request; `reply()` reports what went wrong.

        Args:
            timeout: seconds for the whole of it.
            stayed: the agent, if it is there already; None: it is to be sent.
            keep: receives an agent that stays.
        """
        self.node, self._op = node, request.op
        self._stream = stream
        self._limits = {"head_limit": request.head_limit, "body_limit": request.body_limit}
        self._turn_until = request.turn_until
        self._timeouts = timeouts
        self._began = time.monotonic()
        self._done_by = self._began + min(timeout, request.timeout)
        """When the last answer must have come."""
        self._answer_by = math.inf
        """When the next answer must have come."""
        self._rests_until = -math.inf
        """Until when it need not give a sign of life: it has said that it waits for us."""
        self._marker = stayed.marker if stayed else agent.fresh_marker()
        self._known = frozenset((request.op, *(stayed.known if stayed else ())))
        self._keep = keep if request.stay else None
        self._kept = False
        """The stream is another call's by now."""
        self._noise = bytearray()
        """What came before the marker."""
        self._pace = Pace()
        self._json = self._bodies = 0
        """Bytes that came of each."""
        self._buffer = b""
        self._position = 0
        """How many bytes of the buffer were read."""
        self._answering = False
        self.end_turn: Callable[[], object] = lambda: None
        """Lets other nodes have their turn; may be called again."""
        self._ended = False
        """The agent will never speak."""
        self._failure: NodeError | None = NodeError(
            "lost", "answer", "the call was closed before its answer"
        )
        """None: the last answer has come."""
        self._resting = threading.Lock()
        """Held for a moment, by who asks whether the node rests and by who ends that."""
        self._resume: Callable[[], object] | None = None
        """What is to be called then."""
        self._closed = False
        self._sending = threading.Lock()
        self._send_failed = False
        """A message was sent in part: no further one would be understood."""
        opening = (
            (agent.further(request.op, stayed.known),)
            if stayed
            else agent.opening(self._marker, node.python, request.op)
        )
        asked = {"op": request.op, "args": plain(request.args), "stay": request.stay}
        head = encode_head(asked, len(request.body))
        sent_by = time.monotonic() + timeouts.answer
        try:
            # What all nodes are sent is not copied for each.
            for data in filter(None, (*opening, head, request.body)):
                stream.send(data, sent_by - time.monotonic())
        except OSError as error:
            # What the node writes to the other pipe explains more than our failure to write.
            logger.debug("%s: sending the agent: %s", node.name, error)
        self._speaks_by = time.monotonic() + timeouts.answer

    def await_agent(self) -> bool:
        """Wait until the agent speaks; False: it ended first, and the reply says why."""
        try:
            self._find_marker()
        except NodeError as failure:
            self._failure = failure
            self._ended = True
            return failure.state != "bad-output"
        return True

    def messages(self) -> Iterator[Message]:
        """Yield answers as they come, up to and with the last."""
        try:
            if self._ended:
                return
            if not self._answering:
                self._find_marker()
            while self._failure is not None:
                yield self._answer()  # in no variable: who waits holds no answer
        except CutFrame:
            self._failure = self._ended_early()
        except BadFrame as error:
            self._failure = NodeError("bad-output", "answer", f"not ours: {error}", _FOREIGN)
        except NodeError as failure:
            self._failure = failure
        finally:
            self._rests_until = -math.inf  # no more answers: what follows is its reply
            self.end_turn()

    def send(self, message: Message) -> None:
        """Send a further message; a node that takes none is found by `messages`."""
        with self._sending:
            self._rests_until = min(self._rests_until, time.monotonic() + self._timeouts.silence)
            try:
                if not (self._send_failed or self._kept):
                    data = message.encode()
                    self._stream.send(data, self._timeouts.answer + len(data) / SLOWEST_RATE)
            except OSError as error:
                self._send_failed = True
                logger.debug("%s: sending: %s", self.node.name, error)
        self._end_rest()

    def rest(self, resume: Callable[[], object]) -> bool:
        """Say whether the node waits for us, as it said with its last answer."""
        with self._resting:
            owes = min(self._done_by, self._answer_by, self._rests_until) < math.inf
            if owes or self._closed or self._failure is None:
                return False
            self._resume = resume
            return True

    def _end_rest(self) -> None:
        with self._resting:
            resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def set_deadline(self, seconds: float) -> None:
        """Expect the next answer within so many seconds: heartbeats are none."""
        self._answer_by = time.monotonic() + seconds
        if seconds < math.inf:
            self._end_rest()

    def reply(self) -> Reply:
        """Return how the call ended."""
        if self._failure is None:
            return Reply(node=self.node.name)
        seconds = time.monotonic() - self._began
        return Reply.failed(self.node.name, self._failure, seconds=seconds)

    def close(self) -> None:
        """Close the channel."""
        self._closed = True
        if not self._kept:
            self._stream.close()
        self.end_turn()
        self._end_rest()

    def take_over(self) -> tuple[bytes, Stream]:
        """Return what has been received and the stream, for a program that speaks itself."""
        return self._buffer[self._position :], self._stream

    def read(self, count: int) -> bytes:
        """Return up to so many bytes of the answers, as `wire.read_message` asks for them."""
        if self._position == len(self._buffer):
            self._buffer, self._position = self._receive(self._timeouts.silence), 0
        data = self._buffer[self._position : self._position + count]
        self._position += len(data)
        if self._position == len(self._buffer):
            self._buffer, self._position = b"", 0
        return data

    def _answer(self) -> Message:
        """Return the next answer; note what it ends."""
        message = self._next()
        self._answer_by = math.inf
        ended = "end" in message.head
        if ended:
            self._failure = None
            if self._keep is not None and not self._buffer:
                with self._sending:
                    self._kept = True
                if self._closed:  # by another thread, which may have seen either
                    self._stream.close()
                else:
                    since = time.monotonic()
                    self._keep(Stayed(self._stream, self._marker, since, self._known))
        if ended or self._turn_until in message.head:
            self.end_turn()
        return message

    def _next(self) -> Message:
        """Return the next answer that is not a heartbeat."""
        while True:
            message = read_message(self, **self._limits)
            if message is None:
                raise self._ended_early()
            if message.size < SMALL:
                self._pace.wait()
            self._count(message)
            if "crash" in message.head:
                logger.debug("%s: %s", self.node.name, message.head.get("traceback"))
                words = str(message.head["crash"])
                if words == f"KeyError: {self._op!r}":  # the run keeps the agent that began it
                    raise NodeError(OLDER, OPERATION, _OLDER, node=self.node.name)
                raise node_limit(words) or NodeError("bad-output", "answer", words, _REPORT)
            self._rests_until = math.inf if message.head.pop("rests", False) else -math.inf
            if "beat" not in message.head:
                return message

    def _count(self, message: Message) -> None:
        """Refuse a node whose answers are more JSON than any operation gives."""
        json = message.size - message.body_length
        self._bodies += message.body_length
        if json < SMALL:
            return
        self._json += json
        seconds = time.monotonic() - self._began
        if self._json > JSON_LIMIT + JSON_RATE * seconds + self._bodies / JSON_SHARE:
            words = f"not ours: {self._json} bytes of JSON in {seconds:.0f} s"
            raise NodeError("bad-output", "answer", words, _FOREIGN)

    def _find_marker(self) -> None:
        noise, found = self._noise, -1
        while found < 0:
            # A shell's noise does not make it longer.
            data = self._receive(self._speaks_by - time.monotonic())
            if not data:
                raise self._never_began()
            searched = max(0, len(noise) - len(self._marker))
            noise += data
            found = noise.find(self._marker, searched)
            if found < 0 and len(noise) > NOISE_LIMIT:
                hint = "make the login shell's start files silent where they have no terminal"
                words = f"more than {NOISE_LIMIT} bytes before the agent's answer"
                raise NodeError("bad-output", "exec", words, hint)
        if found:
            logger.debug("%s: the login shell printed %d bytes", self.node.name, found)
        self._buffer = bytes(noise[found + len(self._marker) :])
        noise.clear()
        self._answering = True

    def _receive(self, silence: float) -> bytes:
        while True:
            timeout = min(silence, min(self._done_by, self._answer_by) - time.monotonic())
            try:
                if timeout <= 0:
                    raise TimeoutError  # noqa: TRY301  (also where bytes come without end)
                return self._stream.receive(timeout)
            except TimeoutError as error:
                if timeout < silence or time.monotonic() >= self._rests_until:
                    raise self._timed_out(is_silent=timeout >= silence) from error
            except OSError as error:
                raise NodeError("lost", "answer", str(error), _reachable(self.node)) from error

    def _timed_out(self, *, is_silent: bool) -> NodeError:
        """Return the failure of a node that was silent too long, or not done by its deadline."""
        words = f"not done in {time.monotonic() - self._began:.0f} s"
        if is_silent:
            limit = self._timeouts.silence if self._answering else self._timeouts.answer
            words = f"no sign of life for {limit:.0f} s"
        if self._noise:
            words += f"; its login shell said: {bytes(self._noise[-200:])!r}"
        hint = f"look at the host's load and mounts: {_on(self.node)} uptime"
        return NodeError("timeout", "answer" if self._answering else "exec", words, hint)

    def _never_began(self) -> NodeError:
        """Return why the command ended before the agent spoke."""
        ending = self._stream.ending()
        if not ending.connected:
            return self._broken("exec", ending)
        if ending.exit_code == agent.NO_PYTHON:
            hint = "install Python 3.9 or newer there, or set `python` in the inventory"
            return NodeError("bad-output", "exec", "no Python 3.9 or newer was found", hint)
        words = f"the login shell ended ({_status(ending)}) before the agent could speak"
        output = ending.errors.strip() or bytes(self._noise).strip()
        login = self.node.ssh.via != "srun"  # a step has no login shell
        hint = f"try: {_on(self.node)} " + (f"'echo it works'{_ENDS}" if login else "echo it works")
        words += _last_of(output)
        return node_limit(words) or NodeError("bad-output", "exec", words, hint)

    def _ended_early(self) -> NodeError:
        """Return why the answers ended before the last one."""
        ending = self._stream.ending()
        if not ending.connected:
            return self._broken("answer", ending)
        words = f"the agent ended ({_status(ending)}) before its last answer"
        hint = f"was it killed for want of memory? try: {_on(self.node)} dmesg"
        words += _last_of(ending.errors.strip())
        return node_limit(words) or NodeError("lost", "answer", words, hint)

    def _broken(self, phase: str, ending: ExitInfo) -> NodeError:
        words = ending.cause or "the connection broke"
        return NodeError("lost", phase, words, _reachable(self.node))


_FOREIGN = "does a login shell's start file leave something running that prints later?"
_ENDS = (
    "; if that prints nothing, a start file of the login shell, such as ~/.bashrc, ends or replaces"
    " it: let its first line be `[[ $- == *i* ]] || return`"
)
_OLDER = "the run was started by an earlier version of clusterctl, which cannot tell this"
_REPORT = "this is a bug in clusterctl; the traceback is in the output of: clusterctl -vv"


def _status(ending: ExitInfo) -> str:
    return "killed" if ending.exit_code is None else f"status {ending.exit_code}"


def _last_of(output: bytes) -> str:
    """Return the end of a message: the last output of a process, if it wrote any."""
    return ": " + output[-300:].decode("utf-8", "backslashreplace") if output else ""


def _on(node: Node) -> str:
    """Return the beginning of a command that the user can type to run another on the node."""
    if node.ssh.via == "srun":
        return f"srun --jobid={node.ssh.slurm_job} --overlap --nodes=1 --nodelist={node.host}"
    return f"ssh {node.host}"


def _reachable(node: Node) -> str:
    if node.ssh.via == "srun":
        return f"does the allocation still run? try: squeue --job {node.ssh.slurm_job}"
    return f"does the host still answer? try: {_on(node)} uptime"
