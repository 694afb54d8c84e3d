"""What a node finds out once an attempt has failed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from clusterctl.node.supervisor import after_attempt


@pytest.mark.parametrize(("lost_after", "waits"), [(2.0, 6.0), (15.0, 16.0), (600.0, 60.0)])
def test_a_node_is_asked_for_as_long_as_it_may_be_silent_while_ranks_run(
    monkeypatch: pytest.MonkeyPatch, lost_after: float, waits: float
) -> None:
    asked: list[Any] = []

    def connect_to(targets: list[dict[str, Any]], _nonce: str, seconds: float) -> list[Any]:
        asked.append(([one["node"] for one in targets], seconds))
        states = {"c": "timeout", "d": "refused"}
        return [{"node": one["node"], "state": states[one["node"]]} for one in targets]

    monkeypatch.setattr(after_attempt, "connect_to", connect_to)
    job = {
        "node": "b",
        "address": "10.0.0.2",
        "workers": ["b", "c", "d", "e"],
        "link": {"lost_after": lost_after},
        "lineup": {"seats": [{"node": name, "address": "10.0.0.9"} for name in "abcde"]},
    }
    assert after_attempt.unreached(cast("Any", job), ["e"]) == ["c"]
    assert asked == [(["c", "d"], waits)]
