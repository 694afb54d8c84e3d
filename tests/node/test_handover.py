"""A run is looked after by the agent that it began with."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

from clusterctl.node.agent import loader
from tests.node.conftest import Run

SLEEP = "import time; print('here'); time.sleep(300)"


def altered(module: str, old: bytes, new: bytes) -> bytes:
    """Return the agent as another version of it might be."""
    sources = loader.read_sources()
    source = loader.Importer(sources).get_source(module).encode()
    assert old in source
    changed = {**sources, module: zlib.compress(source.replace(old, new))}
    return loader.text_of(changed, "of another version")


def test_an_agent_of_another_version_answers_for_its_own_run(make_run: Callable[..., Run]) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    other = altered("clusterctl.node.run.operations.status", b'"schema": 1,', b'"schema": 0,')
    agent = Path(run.paths().agent)
    agent.write_bytes(other)
    assert run.asked_status()["schema"] == 0
    assert run.tail()[-1].head["node"]["schema"] == 0
    assert run.stop()["gone"]
    agent.write_bytes(loader.program())
    assert run.asked_status()["schema"] == 1
    agent.unlink()
    assert run.asked_status()["state"] == "stopped"


def test_an_agent_of_another_version_gets_more_arguments_than_a_command_line_may_hold(
    make_run: Callable[..., Run],
) -> None:
    run = make_run(SLEEP).start()
    run.wait_for_log(0, b"here")
    other = altered("clusterctl.node.run.operations.status", b'"schema": 1,', b'"schema": 0,')
    Path(run.paths().agent).write_bytes(other)
    since = {f"ranks/{rank}.log": 0 for rank in range(10_000)}  # 200 KB
    answers = run.tail(since={**since, "ranks/0.log": 2})
    assert answers[-1].head["node"]["schema"] == 0
    assert b"".join(answer.body for answer in answers if answer.head.get("rank") == 0) == b"re\n"
