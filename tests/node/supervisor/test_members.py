"""The nodes of a run as its master counts them, and lets others in."""

from __future__ import annotations

from typing import Any

from clusterctl.node.event_loop import EventLoop, Timer
from clusterctl.node.peer_link.peers import Peers
from clusterctl.node.peer_link.run_tokens import node_token
from clusterctl.node.supervisor.members import JOIN_SECONDS, Members


class Silences(Peers):
    """Workers that were heard so many seconds ago."""

    silences: dict[str, float] = {}  # noqa: RUF012


class World:
    """A master's members, whose time the test lets pass."""

    def __init__(self, *, least: int = 2, most: int = 3, **more: Any) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        job: Any = {
            "node_rank": 0, "min_nodes": least, "elastic": {"max_nodes": most},
            "master": {"node": "a"}, "workers": ["b"], "link": {"lost_after": 15.0}, **more,
        }  # fmt: skip
        self.peers = Silences(job, job["workers"])
        self.peers.silences = {}
        loop: Any = EventLoop()
        loop.call_later = self.call_later
        self.members = Members(loop, job, self.peers, "secret", lambda: None)

    def call_later(self, seconds: float, callback: Any) -> Timer:
        self.timers.append(Timer(self.now + seconds, callback))
        return self.timers[-1]

    def live(self, seconds: float) -> None:
        self.now += seconds
        for timer in [one for one in self.timers if one.due <= self.now]:
            self.timers.remove(timer)
            if timer.callback is not None:
                timer.callback()

    def ask(self, node: str, *, over: bool = False, **how: bool) -> Any:
        """Return the kind of the refusal, or what the node got."""
        answer = self.members.answer({"joins": node, **how}, over=over)
        return answer.get("refused", answer)

    def arrive(self, node: str) -> None:
        self.peers.others[node] = self.peers.others[node].arrived(self.now, None)

    def leave(self, node: str) -> None:
        self.peers.change(node, left=True)

    def let_in(self, node: str) -> Any:
        return self.ask(node)["node_rank"]

    @property
    def nodes(self) -> str:
        return "".join(self.members.nodes)


FIXED: dict[str, Any] = {
    "least": 0, "elastic": None, "restart": {"max": 1}, "lineup": {"seats": [], "launch": {}},
}  # fmt: skip


def test_a_new_node_gets_the_next_number_and_counts_once_it_is_there() -> None:
    one = World()
    assert one.ask("c", asks=True) == {"allowed": True}
    assert (one.ask("c")["token"], one.nodes) == (node_token("secret", "c"), "abc")
    assert not one.members.enough_without("b")  # c has not come
    one.arrive("c")
    assert one.members.enough_without("b")
    one.leave("b")
    assert (one.ask("c"), one.let_in("d")) == ("joined", 3)
    assert one.ask("c", over=True) == "over"


def test_places_that_were_given_count_against_the_most() -> None:
    one = World()
    assert (one.let_in("c"), one.ask("d"), one.let_in("c")) == (2, "full", 2)
    one.ask("c", withdraws=True)
    assert (one.nodes, one.let_in("d")) == ("ab", 3)


def test_a_lost_node_keeps_its_number_and_is_known_if_it_does_not_come() -> None:
    one = World(least=1, most=2)
    assert one.ask("b") == "joined"
    one.leave("b")
    assert one.let_in("b") == 1
    one.ask("b", withdraws=True)
    assert one.nodes == "ab"
    assert one.let_in("b") == 1


def test_a_node_joins_a_run_of_a_fixed_size_only_if_that_restarts_itself() -> None:
    assert World(least=0, elastic=None).ask("c") == "not-elastic"
    assert World(node_rank=1).ask("c") == "not-elastic"
    assert World(**FIXED, node_rank=1).ask("c") == "not-elastic"
    one = World(**FIXED)
    assert (one.let_in("c"), one.ask("b")) == (2, "joined")
    one.peers.silences["b"] = 16.0  # its end is known, so nobody counted it as lost
    assert one.let_in("b") == 1


def test_a_node_that_is_let_in_again_gets_the_whole_time_again() -> None:
    one = World(least=1)
    one.let_in("c")
    one.live(10)
    one.arrive("c")
    one.leave("c")
    one.live(JOIN_SECONDS - 20)
    assert one.let_in("c") == 2
    one.live(15)  # what was the end of its first admission
    one.arrive("c")
    assert one.ask("c") == "joined"


def test_a_node_that_asks_twice_and_never_comes_is_expected_from_the_last_time() -> None:
    one = World()
    one.let_in("c")
    one.live(JOIN_SECONDS - 10)
    one.let_in("c")
    one.live(JOIN_SECONDS - 1)
    assert one.nodes == "abc"
    one.live(2)
    assert one.nodes == "ab"
