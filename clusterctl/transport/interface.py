"""What the verbs see of transport: one reply per node whatever happens, and open calls."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Self

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.values import dataclass
from clusterctl.wire import Message

State = Literal[
    "unreachable",  # no route, no answer, name unknown
    "refused",  # the host answers, the port does not
    "auth",
    "hostkey",
    "timeout",  # connected, then no answer in time
    "lost",  # the connection broke
    "bad-output",  # what came back is not ours
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds for each phase of a call."""

    connect: float = 5.0
    handshake: float = 10.0
    auth: float = 15.0
    answer: float = 30.0
    """From the start of a call to the agent's first byte: the login shell's own time."""
    silence: float = 10.0
    """Without any byte once the agent has spoken; it sends a heartbeat every two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one node gave for one call; there is always one, whatever happened."""

    node: str
    """The inventory's node name."""
    error: NodeError | None = None
    """Why the call did not come to its end."""
    messages: tuple[Message, ...] = ()
    seconds: float = 0.0

    @classmethod
    def failed(cls, node: str, error: NodeError, *, seconds: float = 0.0) -> Self:
        """Return the reply of a node that failed; another node may have failed the same way."""
        words = (error.state, error.phase, error.message, error.hint)
        own = NodeError(*words, node=node, details=error.details)
        return cls(node=node, error=own, seconds=seconds)

    @property
    def ok(self) -> bool:
        """The call ended normally; its results are in `messages`."""
        return self.error is None

    @property
    def state(self) -> str:
        """`ok`, or how it failed."""
        return self.error.state if self.error else "ok"

    @property
    def last(self) -> Message:
        """The final answer of a call that is ok."""
        return self.messages[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One operation for a node's agent: `op` is one of `node.agent.operations`."""

    op: str
    args: Mapping[str, object]
    body: bytes = b""
    head_limit: int = 8 * 1024 * 1024
    """Bytes of JSON that one answer may have; they take thirty times as much memory."""
    turn_until: str = ""
    """A key of the answer that ends its turn, for work that keeps a node busy.

    Empty: the turn ends when the agent runs, for others need not wait for what may take hours.
    """
    stay: bool = False
    """The agent waits for another request then: one is likely to follow within seconds."""
    body_limit: int = 16 * 1024 * 1024
    """Bytes that may follow the JSON of one answer."""
    timeout: float = math.inf
    """Seconds that all of it may take, however much comes meanwhile."""


class Call(ABC):
    """One operation running on one node: a stream of messages each way.

    One thread reads `messages()` and then asks for the `reply()`. Any thread may `send` or `close`.
    """

    node: Node
    login_seconds: float = 0.0
    """How long the login took that was made for it; 0: there was one already."""

    @abstractmethod
    def messages(self) -> Iterator[Message]:
        """Yield answers as they come, up to and with the last.

        Heartbeat frames are consumed. When the stream breaks, iteration ends and `reply()` has
        the reason.
        """

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a further message to the operation."""

    @abstractmethod
    def set_deadline(self, seconds: float) -> None:
        """Expect the next answer within so many seconds; without this it may take forever."""

    def rest(self, resume: Callable[[], object]) -> bool:
        """Say whether the node owes nothing, so that no thread needs to read meanwhile.

        If so, `resume` is called once: when a caller sends, sets a deadline or closes.
        """
        del resume
        return False

    @abstractmethod
    def reply(self) -> Reply:
        """After `messages()` has ended: how the call ended (its `messages` are empty)."""

    @abstractmethod
    def close(self) -> None:
        """Close the channel; what the operation detached lives on."""
