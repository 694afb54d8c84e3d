"""What is refused before anything is asked of a node, and what the command line overrides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.verbs.events import drive
from clusterctl.verbs.launch import launch
from clusterctl.verbs.launch.launch import LaunchOptions
from clusterctl.verbs.launch.validate_job import require_script
from clusterctl.verbs.runs.records import Records
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER


def cluster(**job: object) -> Cluster:
    return replace(CLUSTER, job=replace(CLUSTER.job, **job))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (cluster(command=()), "no command"),
        (cluster(launcher="slurm"), "nodes of a Slurm allocation"),
    ],
)
def test_what_could_never_be_launched_asks_no_node(given: Cluster, words: str) -> None:
    nodes = FakePool(given, {})
    steps = launch.launch(given, nodes, Records(), LaunchOptions())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        drive(steps, lambda _event: None)
    assert nodes.requests == []


def test_a_node_that_is_not_reached_stops_a_launch_even_by_force() -> None:
    nodes = FakePool(CLUSTER, {})
    options = LaunchOptions(force=True, check=False, sync=False)
    steps = launch.launch(CLUSTER, nodes, Records(), options)  # type: ignore[arg-type]
    with pytest.raises(LaunchRefused, match=r"ssh\.connect") as caught:
        drive(steps, lambda _event: None)
    assert caught.value.by == "check"


def test_a_launch_of_the_training_program_tells_where_to_get_it(tmp_path: Path) -> None:
    given = cluster(command=("-m", "train", "--smoke"))
    with pytest.raises(UsageError, match="expected the program train") as caught:
        require_script(given, tmp_path)
    assert caught.value.hint == "clusterctl init --with-train"
    require_script(cluster(command=("-m", "train"), env=(("PYTHONPATH", "/x"),)), tmp_path)
    (tmp_path / "train").mkdir()
    require_script(given, tmp_path)
