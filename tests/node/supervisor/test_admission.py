"""A node that was let in is expected for a while, each time anew, until it has come."""

from __future__ import annotations

from typing import Any

from clusterctl.node.event_loop import EventLoop, Timer
from clusterctl.node.peer_link.peer_link import NoPeers
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.supervisor.admission import JOIN_SECONDS, Admission
from clusterctl.node.supervisor.members import Members

JOB: Any = {
    "elastic": {"max_nodes": 3}, "node_rank": 0, "min_nodes": 1, "master": {"node": "a"},
    "workers": ["b"],
}  # fmt: skip


class World:
    """An admission whose time the test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.members = Members(JOB)
        loop: Any = EventLoop()
        loop.call_later = self.call_later
        self.admission = Admission(loop, self.members, NoPeers(), "secret", lambda: None)

    def call_later(self, seconds: float, callback: Any) -> Timer:
        self.timers.append(Timer(self.now + seconds, callback))
        return self.timers[-1]

    def let_in(self, node: str) -> dict[str, Any]:
        return self.admission.answer({"joins": node}, ending=False)

    def live(self, seconds: float) -> None:
        self.now += seconds
        for timer in [one for one in self.timers if one.due <= self.now]:
            self.timers.remove(timer)
            if timer.callback is not None:
                timer.callback()


def test_a_node_that_is_let_in_again_gets_the_whole_time_again() -> None:
    world = World()
    assert world.let_in("c")["token"] == node_token("secret", "c")
    world.live(10)
    world.admission.arrive("c")
    world.members.leave("c")
    world.live(JOIN_SECONDS - 20)
    assert world.let_in("c")["node_rank"] == 2
    world.live(15)  # what was the end of its first admission
    assert world.members.withdraw("c"), "it is expected still"


def test_a_node_that_asks_twice_and_never_comes_is_expected_from_the_last_time() -> None:
    world = World()
    world.let_in("c")
    world.live(JOIN_SECONDS - 10)
    world.let_in("c")
    world.live(JOIN_SECONDS - 1)
    assert world.members.nodes == ["a", "b", "c"]
    world.live(2)
    assert world.members.nodes == ["a", "b"]
