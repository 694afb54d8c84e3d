"""What is known of a node, from its start to its loss and back."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.node.peer_link.peer import ADMITTED, LOST, OVER, THERE, Peer

SEAT: Any = {"node": "b", "address": "10.0.0.2", "procs": 1}
AFTER: dict[str, Any] = {"step": 4}


def test_a_node_that_is_back_stands_by_and_the_attempt_was_lost_by_it_all_the_same() -> None:
    there = Peer(1).arrived(1.0, None)._replace(ready=True, life={"printed": True})
    back = there.lost(9.0).admitted(20.0).arrived(21.0, SEAT)
    assert back == Peer(1, THERE, came=True, lost_at=9.0, spare=True, seat=SEAT, heard=21.0), (
        "of its earlier part nothing counts any more"
    )
    again = back.ended(AFTER).lost(30.0)
    assert (again.lost_at, again.seat, again.after) == (30.0, None, None)


@pytest.mark.parametrize(
    ("peer", "present", "done"),
    [
        (Peer(1), True, False),
        (Peer(1).arrived(1.0, None), True, False),
        (Peer(1).arrived(1.0, None)._replace(left=True), False, False),
        (Peer(1).arrived(1.0, None).ended(None), True, True),
        (Peer(1).lost(2.0), False, True),
        (Peer(1).lost(2.0).admitted(3.0), False, True),
        (Peer(1, ADMITTED), False, True),
        (Peer(1, OVER), True, True),
    ],
)
def test_who_counts_and_who_is_waited_for(peer: Peer, *, present: bool, done: bool) -> None:
    assert (peer.present, peer.done) == (present, done)


def test_a_node_that_was_lost_before_it_came_stays_lost_from_the_moment_it_is_there() -> None:
    late = Peer(1).lost(2.0).arrived(9.0, None)
    assert (late.phase, late.came, late.lost_at) == (LOST, True, 9.0)
    assert late.ended(AFTER).after is None, "it was decided without it"


def test_a_place_that_is_given_twice_or_given_up_keeps_when_the_node_was_lost() -> None:
    let_in = Peer(1).lost(2.0).admitted(3.0)
    assert let_in.admitted(4.0).lost_at == 2.0
    assert let_in.lost(5.0).lost_at == 2.0
    assert Peer(2, ADMITTED).admitted(4.0).lost_at is None, "it was never part of the run"
