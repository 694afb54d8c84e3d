"""What is refused before anything is asked of a node, and what the command line overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.errors import ClusterError, CouldNotTell, Interrupted, LaunchRefused, UsageError
from clusterctl.facts.machine.system import SshStatus
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.verbs.events import Event, Notice, ignore
from clusterctl.verbs.launch import launch
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.launch.validate_job import require_script
from clusterctl.verbs.preflight.check import CheckOptions, judge
from clusterctl.verbs.runs.proof import KEY_FILE
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.wire import Message, plain
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, PLAN, RUN

GONE = [Message({"gone": True, "left": [], "port_free": True})]


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
    with pytest.raises(UsageError, match=words):
        launch.launch(given, cast("Any", nodes), Records(), LaunchOptions(), emit=ignore)
    assert nodes.requests == []


def test_a_node_that_is_not_reached_stops_a_launch_even_by_force() -> None:
    nodes = FakePool(CLUSTER, {})
    options = LaunchOptions(force=True, check=False, sync=False)
    with pytest.raises(LaunchRefused, match=r"ssh\.connect") as caught:
        launch.launch(CLUSTER, cast("Any", nodes), Records(), options, emit=ignore)
    assert caught.value.by == "check"


RECORD = RunRecord(run=RUN, began=1.0, cluster=CLUSTER, plan=plain(PLAN))
REACHED = {name: NodeFacts(node=name, reach=SshStatus(state="ok")) for name in "ab"}
VERDICT = judge(CLUSTER, REACHED, CheckOptions(only=("ssh",)))


class Ready:
    """A launch that is ready to start, whose nodes are asked nothing before."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **start: Any) -> None:
        self.records = Records(folder / "state")
        self.pool = FakePool(CLUSTER, {name: {"stop": GONE, **start} for name in "ab"})
        monkeypatch.setattr(launch, "prepare", lambda *_, **__: (CLUSTER, PLAN, VERDICT))
        monkeypatch.setattr(launch, "require_key", ignore)  # it was fine before

    def run(self, show: Callable[[Event], object]) -> None:
        options = LaunchOptions(check=False, sync=False)
        launch.launch(CLUSTER, cast("Any", self.pool), self.records, options, emit=show)

    @property
    def end(self) -> Mapping[str, Any]:
        return plain(self.records.end(RECORD)) or {}


def raiser(error: BaseException) -> Callable[[object], Any]:
    def fail(_of: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (CouldNotTell("the connection died"), "failed"),
        (RuntimeError("a bug"), "failed"),
        (LaunchRefused("busy", by="busy"), "failed"),
        (KeyboardInterrupt(), "stopped"),
    ],
)
def test_a_start_that_fails_in_any_way_leaves_a_record_with_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, state: str
) -> None:
    ready = Ready(tmp_path, monkeypatch, start=raiser(error))
    with pytest.raises((type(error), Interrupted)):
        ready.run(lambda _event: None)
    assert (ready.end["run"], ready.end["state"]) == (RUN, state)
    by = {LaunchRefused: "busy", KeyboardInterrupt: "stop"}.get(type(error), "controller")
    assert ready.end["ended_by"] == by
    assert [request.op for _, request in ready.pool.requests] == ["start", "stop"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError()])
def test_an_error_while_the_plan_is_shown_starts_nothing_and_is_the_runs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    ready = Ready(tmp_path, monkeypatch)
    with pytest.raises((BrokenPipeError, Interrupted)):
        ready.run(raiser(error))
    assert ready.end["state"] == ("failed" if isinstance(error, OSError) else "stopped")
    assert ready.pool.requests == []


def test_a_key_that_cannot_be_used_is_the_runs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Ready(tmp_path, monkeypatch)
    ready.records.root.mkdir()
    key = ready.records.root / KEY_FILE
    key.write_bytes(b"short")
    key.chmod(0o600)
    with pytest.raises(ClusterError, match="expected 32 bytes, found 5"):
        ready.run(lambda _event: None)
    assert ready.end["state"] == "failed"
    assert ready.pool.requests == []


def test_the_command_and_the_names_of_secrets_are_shown_before_any_node_is_asked() -> None:
    job = {"command": ("run.py", "it's"), "env_from": ("PATH", "HOME")}
    nodes = FakePool(cluster(**job), {})
    options = LaunchOptions(check=False, sync=False)
    seen: list[Event] = []
    with pytest.raises(LaunchRefused):
        launch.launch(cluster(**job), cast("Any", nodes), Records(), options, emit=seen.append)
    told = [event.text for event in seen[:2] if isinstance(event, Notice)]
    assert told == ["""command: run.py 'it'"'"'s'""", "env_from: PATH, HOME"]


def test_a_launch_of_the_training_program_tells_where_to_get_it(tmp_path: Path) -> None:
    given = cluster(command=("-m", "train", "--smoke"))
    with pytest.raises(UsageError, match="expected the program train") as caught:
        require_script(given, tmp_path)
    assert caught.value.hint == "clusterctl init --with-train"
    require_script(cluster(command=("-m", "train"), env=(("PYTHONPATH", "/x"),)), tmp_path)
    (tmp_path / "train").mkdir()
    require_script(given, tmp_path)
