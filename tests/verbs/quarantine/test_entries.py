"""Whom an entry of the quarantine is about, how long it counts, and what is no news."""

from __future__ import annotations

from clusterctl.verbs.quarantine.blame import Blame
from clusterctl.verbs.quarantine.entries import (
    DAY,
    MOST,
    USUAL,
    Entries,
    Machine,
    known_against,
    put,
    put_blamed,
    take_out,
)

NOW = 1_000_000_000.0


def machine(node: str = "gpu1", cluster: str = "lab", *keys: str) -> Machine:
    return Machine(cluster=cluster, node=node, host=node, keys=keys)


OURS = machine("gpu1", "lab", "SHA256:a")


def blame(time: float, run: str = "lab-1", reason: str = "lost") -> Blame:
    return Blame(node="gpu1", run=run, reason=reason, time=time)


def blame_at(
    entries: Entries, time: float, now: float = NOW, run: str = "lab-1", launched: float = NOW - 99
) -> Entries:
    return put_blamed(entries, OURS, blame(time, run), launched=launched, now=now)


def by_hand(entries: Entries = (), days: float = 3, now: float = NOW) -> Entries:
    return put(entries, OURS, "noisy  fan\n", now=now, until=now + days * DAY)


def test_an_entry_counts_until_its_time_is_over() -> None:
    entries = by_hand()
    known = known_against(entries, OURS, NOW + 60)
    assert known is not None
    assert (known.reason, known.run, known.age_s, known.left_s) == (
        "noisy fan",
        "",
        60,
        3 * DAY - 60,
    )
    assert known_against(entries, OURS, NOW + 3 * DAY) is None


def test_another_inventory_sees_the_same_machine_but_not_one_of_the_same_name() -> None:
    entries = by_hand()
    same, other = (
        machine("gpu1", "prod", "SHA256:b", "SHA256:a"),
        machine("gpu1", "prod", "SHA256:b"),
    )
    assert known_against(entries, same, NOW) is not None
    assert known_against(entries, other, NOW) is None
    assert known_against(entries, machine("gpu1", "prod"), NOW) is None  # its key is not known
    assert known_against(entries, machine("gpu2", "lab", "SHA256:a"), NOW) is None  # one image


def test_a_machine_that_was_replaced_is_not_kept_out_and_that_is_told() -> None:
    entries = by_hand()
    known = known_against(entries, machine("gpu1", "lab", "SHA256:new"), NOW)
    assert known is not None
    assert known.replaced
    left = take_out(entries, machine("gpu1", "lab", "SHA256:new"), now=NOW)
    assert known_against(left, OURS, NOW) is None


def test_without_a_key_the_host_of_the_same_cluster_counts() -> None:
    entries = put((), machine(), "noisy", now=NOW, until=NOW + DAY)
    assert known_against(entries, machine(), NOW) is not None
    assert known_against(entries, OURS, NOW) is not None
    assert known_against(entries, machine("gpu1", "prod", "SHA256:a"), NOW) is None


def test_a_run_blames_a_node_once_however_often_it_is_shown() -> None:
    entries = blame_at((), NOW - 5)
    known = known_against(entries, OURS, NOW)
    assert known is not None
    assert (known.run, known.since, known.until) == ("lab-1", NOW - 5, NOW - 5 + USUAL)
    assert blame_at(entries, NOW - 5, now=NOW + DAY) is entries
    assert blame_at(entries, NOW - 99, run="lab-0") is entries  # an older run, shown later


def test_what_a_person_took_out_no_earlier_run_brings_back() -> None:
    entries = take_out(blame_at((), NOW - 5), OURS, now=NOW)
    assert known_against(entries, OURS, NOW) is None
    assert blame_at(entries, NOW - 5) is entries
    assert blame_at(entries, NOW + 9, now=NOW + 9) is entries  # a clock that is ahead
    assert blame_at(entries, NOW - 1, run="lab-2") is entries
    assert blame_at(entries, NOW + 5000, now=NOW + 9, run="lab-2") is entries  # ahead, too
    behind = NOW - 7200
    news = blame_at(entries, behind, now=NOW + 9, run="lab-2", launched=NOW + 5)
    assert known_against(news, OURS, NOW + 9) is not None
    again = by_hand(entries, now=NOW + 1)
    assert known_against(again, OURS, NOW + 1) is not None


def test_a_failure_of_long_ago_or_of_the_future_keeps_no_node_out_for_longer() -> None:
    assert blame_at((), NOW - USUAL) == ()
    (entry,) = blame_at((), NOW + 1e9)
    assert (entry.since, entry.until) == (NOW, NOW + USUAL)


def test_a_failure_shortens_nothing_that_a_person_set() -> None:
    kept = by_hand(days=30)
    assert blame_at(kept, NOW + 1, now=NOW + 1) is kept
    (entry,) = blame_at(by_hand(days=3), NOW + 1, now=NOW + 1)
    assert (entry.run, entry.until) == ("lab-1", NOW + 1 + USUAL)


def test_an_entry_that_is_over_is_kept_as_long_as_its_run_may_be_shown() -> None:
    entries = take_out(blame_at((), NOW), OURS, now=NOW + 1)
    other = machine("gpu2")
    soon = put(entries, other, "x", now=NOW + DAY, until=NOW + 2 * DAY)
    assert [one.node for one in soon] == ["gpu1", "gpu2"]
    later = put(soon, other, "x", now=NOW + USUAL + 1, until=NOW + USUAL + 2)
    assert [one.node for one in later] == ["gpu2"]


def test_the_entries_and_their_texts_are_bounded() -> None:
    entries: Entries = ()
    for number in range(MOST + 5):
        until = NOW + DAY + number
        entries = put(entries, machine(f"gpu{number}"), "x" * 9999, now=NOW, until=until)
    assert len(entries) == MOST
    assert entries[0].node == "gpu5"
    assert len(entries[0].reason) == 500


def test_a_run_that_is_shown_again_does_not_blame_the_machine_that_replaced_its_node() -> None:
    entries = blame_at((), NOW - 5)
    new = machine("gpu1", "lab", "SHA256:new")
    assert put_blamed(entries, new, blame(NOW - 5), launched=NOW - 99, now=NOW + 60) is entries
    again = put_blamed(entries, new, blame(NOW + 50, "lab-2"), launched=NOW + 9, now=NOW + 60)
    assert known_against(again, new, NOW + 60) is not None
