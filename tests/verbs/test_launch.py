"""What is refused before anything is asked of a node, and what the command line overrides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.transport.fake import FakePool
from clusterctl.verbs import launch
from clusterctl.verbs.events import drive
from clusterctl.verbs.launch import LaunchOptions
from clusterctl.verbs.records import Records
from tests.verbs.runs import CLUSTER


def cluster(**job: object) -> Cluster:
    return replace(CLUSTER, job=replace(CLUSTER.job, **job))  # type: ignore[arg-type]


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    given = cluster(env_from=("HF_TOKEN",))
    with pytest.raises(UsageError, match="HF_TOKEN"):
        launch.require_secrets(given)
    monkeypatch.setenv("HF_TOKEN", "")
    launch.require_secrets(given)


def test_what_the_command_line_sets_is_not_taken_from_the_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    options = Options(env=(("HF_TOKEN", "x"),))
    given = effective(cluster(env_from=("HF_TOKEN", "PATH")), options)
    launch.require_secrets(given)
    assert given.job.env_from == ("PATH",)


@pytest.mark.parametrize(
    ("given", "words"),
    [(cluster(command=()), "no command"), (cluster(launcher="ray"), "found ray")],
)
def test_what_could_never_be_launched_asks_no_node(given: Cluster, words: str) -> None:
    nodes = FakePool(given, {})
    steps = launch.launch(given, nodes, Records(), LaunchOptions())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        drive(steps, lambda _event: None)
    assert nodes.requests == []


def test_a_script_that_is_not_in_the_folder_is_refused_before_its_folder_is_mirrored(
    tmp_path: Path,
) -> None:
    nodes = tuple(replace(node, workdir="/code") for node in CLUSTER.nodes)
    given = replace(cluster(command=("job.py",)), nodes=nodes)
    options = LaunchOptions(source=tmp_path)
    with pytest.raises(UsageError, match=r"the script job\.py in .*, found no such file"):
        launch.require_script(given, options)
    launch.require_script(given, replace(options, syncs=False))
    for command in (("/opt/job.py",), ("-m", "job")):
        launch.require_script(replace(given, job=replace(given.job, command=command)), options)
    (tmp_path / "job.py").touch()
    launch.require_script(given, options)


def test_a_node_that_is_not_reached_stops_a_launch_even_by_force() -> None:
    nodes = FakePool(CLUSTER, {})
    options = LaunchOptions(forces=True, checks=False, syncs=False)
    steps = launch.launch(CLUSTER, nodes, Records(), options)  # type: ignore[arg-type]
    with pytest.raises(LaunchRefused, match=r"ssh\.connect") as caught:
        drive(steps, lambda _event: None)
    assert caught.value.by == "check"
