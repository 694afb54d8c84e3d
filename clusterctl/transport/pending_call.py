"""A call that can be used while its connection is still being opened."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.transport.interface import Call, Reply
from clusterctl.transport.local_limits import start_thread
from clusterctl.transport.translate_errors import unexpected_error
from clusterctl.wire import Message


class PendingCall(Call):
    """A call that opens in a thread of its own; what is asked of it meanwhile waits."""

    def __init__(
        self,
        node: Node,
        start: Callable[[], Call],
        *,
        ended: Callable[[Reply], object] = lambda _: None,
    ) -> None:
        """Start opening.

        Args:
            start: opens the call; may raise `NodeError`, which becomes the call's reply.
            ended: receives the call's reply.
        """
        self.node = node
        self._ended = ended
        self._opening: Future[Call | NodeError] = Future()
        self._sending = threading.RLock()
        """Keeps messages in order: held while those that waited are sent."""
        start_thread(self._open, start, name=f"start {node.name}")

    def messages(self) -> Iterator[Message]:
        """Yield answers as they come, once the call is open."""
        opened = self._opening.result()
        self.login_seconds = opened.login_seconds if isinstance(opened, Call) else 0.0
        if isinstance(opened, Call):
            yield from opened.messages()

    def send(self, message: Message) -> None:
        """Send a further message, or keep it until the call is open; waits while kept ones go."""

        def send(call: Call) -> None:
            with self._sending:
                call.send(message)

        self._when_open(send)

    def set_deadline(self, seconds: float) -> None:
        """Expect the next answer within so many seconds, from when the call is open."""
        self._when_open(lambda call: call.set_deadline(seconds))

    def rest(self, resume: Callable[[], object]) -> bool:
        """Say whether the node waits for us."""
        opened = self._opening.result()
        return isinstance(opened, Call) and opened.rest(resume)

    def reply(self) -> Reply:
        """Return how the call ended."""
        opened = self._opening.result()
        name = self.node.name
        reply = opened.reply() if isinstance(opened, Call) else Reply.failed(name, opened)
        self._ended(reply)
        return reply

    def close(self) -> None:
        """Close the channel, now or as soon as it is open; does not wait for it."""
        self._when_open(lambda call: call.close())

    def _when_open(self, act: Callable[[Call], object]) -> None:
        """Act on the call: now, or once it is open, in the order in which it was asked."""

        def opened(opening: Future[Call | NodeError]) -> None:
            call = opening.result()
            if isinstance(call, Call):
                act(call)

        self._opening.add_done_callback(opened)

    def _open(self, start: Callable[[], Call]) -> None:
        opened: Call | NodeError
        try:
            opened = start()
        except NodeError as failure:
            opened = failure
        except Exception as error:  # noqa: BLE001  (`unexpected_error` logs it)
            opened = unexpected_error(self.node.name, error)
        with self._sending:
            self._opening.set_result(opened)
