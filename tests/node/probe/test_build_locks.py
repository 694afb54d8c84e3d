"""A lock of torch's extension build counts as held while a process has it open."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.facts.parse_facts import read_arguments
from clusterctl.facts.request import FactRequest
from clusterctl.facts.storage.storage import MOST, BuildLock, parse_build_locks
from clusterctl.node.probe.build_locks import describe_locks
from tests.facts.answering import answers as made
from tests.node.probe.test_read import answers


def test_a_lock_that_nobody_has_open_is_told_from_one_of_a_build(tmp_path: Path) -> None:
    for name in ("alive", "dead"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    os.utime(tmp_path / "dead" / "lock", (1.0, 1.0))
    wanted = FactRequest(build_locks=(f"{tmp_path}/*/lock",))
    with (tmp_path / "alive" / "lock").open():
        seen = answers({"build_locks": read_arguments(wanted)["build_locks"]}).object("build-locks")
    alive, dead = parse_build_locks(made(others={"build-locks": seen}, wanted=wanted)) or ()
    assert (alive.path, alive.held) == (f"{tmp_path}/alive/lock", True)
    assert (dead.path, dead.held, dead.age_s > 1e9) == (f"{tmp_path}/dead/lock", False, True)


def test_a_lock_that_is_released_meanwhile_is_none(tmp_path: Path) -> None:
    assert describe_locks([str(tmp_path / "lock")]) == []


def test_only_paths_that_were_asked_for_are_believed() -> None:
    own = "/home/a/.cache/torch_extensions/py311_cpu/fused op/lock"
    told = [
        *({"path": path, "age_s": 2.5, "held": False}
          for path in (own, "/etc/passwd", "x" + own, own + "/x", own.replace("fused op", "a\nb"))),
        {"path": own, "age_s": "old"}, {"age_s": 1.0}, 7,
        *([{"path": own}] * 50),
    ]  # fmt: skip
    wanted = FactRequest(build_locks=("~/.cache/torch_extensions/*/*/lock",))
    found = parse_build_locks(made(others={"build-locks": {"locks": told}}, wanted=wanted)) or ()
    assert found[:2] == (BuildLock(path=own, age_s=2.5, held=False), BuildLock(path=own))
    assert {lock.path for lock in found} == {own}
    assert len(found) <= MOST
    nothing: list[dict[str, object]] = [{}, {"locks": {}}]
    for locks in nothing:
        assert parse_build_locks(made(others={"build-locks": locks}, wanted=wanted)) is None
