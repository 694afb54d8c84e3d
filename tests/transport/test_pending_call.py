"""Calls that are being started: nobody waits for another's channel."""

from __future__ import annotations

import threading
import time

from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.transport.interface import Call, Reply
from clusterctl.transport.pending_call import PendingCall
from clusterctl.wire import Message
from tests.fake_pool import FakeCall
from tests.waiting import wait_until

NODE = Node(host="a", name="a", ssh=Ssh())


class Stuck(FakeCall):
    """A call on a node that takes no message until the call is closed."""

    def __init__(self) -> None:
        super().__init__(NODE, [Message({})])
        self.sending = threading.Event()
        self._release = threading.Event()

    def send(self, message: Message) -> None:
        self.sending.set()
        assert self._release.wait(10)
        super().send(message)

    def close(self) -> None:
        super().close()
        self._release.set()


def test_closing_does_not_wait_for_a_message_that_the_node_does_not_take() -> None:
    stuck = Stuck()
    call = PendingCall(NODE, lambda: stuck)
    list(call.messages())
    sender = threading.Thread(target=call.send, args=(Message({"n": 1}),))
    sender.start()
    assert stuck.sending.wait(5)
    began = time.monotonic()
    call.close()
    assert time.monotonic() - began < 5
    assert stuck.closed
    sender.join(5)
    assert not sender.is_alive()


def test_answers_are_read_while_what_waited_is_sent() -> None:
    stuck, opened = Stuck(), threading.Event()

    def start() -> Call:
        assert opened.wait(5)
        return stuck

    call = PendingCall(NODE, start)
    call.send(Message({"n": 1}))
    opened.set()
    assert stuck.sending.wait(5)
    assert [message.head for message in call.messages()] == [{"end": True}]
    call.close()


def test_messages_keep_their_order_while_the_call_opens() -> None:
    plain, opened = FakeCall(NODE, [Message({})]), threading.Event()

    def start() -> Call:
        assert opened.wait(5)
        return plain

    call = PendingCall(NODE, start)
    for number in range(100):
        call.send(Message({"n": number}))
        if number == 50:
            opened.set()
    wait_until(lambda: len(plain.sent) == 100)
    assert [message.head["n"] for message in plain.sent] == list(range(100))


def test_a_call_that_is_closed_before_it_opens_is_closed_then() -> None:
    plain, opened = FakeCall(NODE, [Message({})]), threading.Event()

    def start() -> Call:
        assert opened.wait(5)
        return plain

    replies: list[Reply] = []
    call = PendingCall(NODE, start, ended=replies.append)
    call.close()
    assert not plain.closed
    opened.set()
    assert call.reply().ok
    assert [reply.state for reply in replies] == ["ok"]
    wait_until(lambda: plain.closed)
