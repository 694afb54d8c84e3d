"""The speeds of earlier good checks with `--deep`: kept, bounded, and given to later checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from clusterctl.checks.finding import warn
from clusterctl.facts.gpu.accelerators import Gpu, Gpus
from clusterctl.facts.ladder import GpuTrial, Ladder, NcclTransport, Rail, UsualSpeeds
from clusterctl.facts.network.pairwise import Collective
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.speeds import ENOUGH, MEASURED
from clusterctl.verbs.preflight.speed_history import KEPT, keep_speeds, read_history, with_usual

SLOW = (replace(warn("b", "slow"), check="deep.gpus"),)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a check measured."""

    nodes: str = "ab"
    model: str = "H100"
    gpus: int = 2
    """That were tried, of four."""
    rails: int = 2
    network: str = "IB"
    inside_bytes: int = 1 << 30
    across_bytes: int = 1 << 30


def facts(tflops: float, way: Way = Way()) -> dict[str, NodeFacts]:
    trial = GpuTrial(index=0, wrong_numbers=0, wrong_copies=0, tflops=tflops, memory_gb_s=2000.0)
    inside = GpuTrial(index=0, right=True, gbps=2900.0, block_bytes=way.inside_bytes)
    rail = Rail(index=0, right=True, transport=NcclTransport(network=way.network))
    devices = tuple(Gpu(index=index, name=way.model) for index in range(4))
    return {
        name: NodeFacts(
            node=name,
            gpus=Gpus(tool="nvidia-smi", devices=devices),
            ladder=Ladder(
                gpus=tuple(replace(trial, index=index) for index in range(way.gpus)),
                inside=tuple(replace(inside, index=index) for index in range(way.gpus)),
                rails=tuple(replace(rail, index=index) for index in range(way.rails)),
            ),
            across=Collective(right=True, gbps=300.0, block_bytes=way.across_bytes),
        )
        for name in way.nodes
    }


def usual(found: dict[str, NodeFacts]) -> UsualSpeeds | None:
    ladder = found["a"].ladder
    assert ladder
    return ladder.usual


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "lab" / "deep-speeds.json"


def test_a_later_check_gets_the_median_of_the_good_ones(path: Path) -> None:
    for tflops in (700.0, 690.0, 400.0):
        keep_speeds(facts(tflops), (), path)
    found = usual(with_usual(facts(650.0), path))

    assert found
    assert (found.speeds.tflops, found.checks) == (690.0, 3)
    assert found.file == str(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_node_of_which_a_deep_check_complains_is_not_kept(path: Path) -> None:
    keep_speeds(facts(700.0), SLOW, path)

    assert list(read_history(path)) == ["a"]


def test_few_checks_are_kept(path: Path) -> None:
    for number in range(KEPT + 4):
        keep_speeds(facts(float(number + 1)), (), path)

    assert [one.tflops for one in read_history(path)["a"]] == [5.0, 6.0, 7.0, 8.0, 9.0]


def test_two_checks_are_not_enough_to_compare_with(path: Path) -> None:
    for _ in range(ENOUGH - 1):
        keep_speeds(facts(700.0), (), path)

    assert usual(with_usual(facts(700.0), path)) is None


@pytest.mark.parametrize(
    ("now", "compared"),
    [
        (Way(), set(MEASURED)),
        (Way(nodes="abc"), set(MEASURED) - {"across_gbps"}),
        (Way(rails=1), set(MEASURED) - {"across_gbps"}),
        (Way(network="Socket"), set(MEASURED) - {"across_gbps"}),
        (Way(across_bytes=1 << 24), set(MEASURED) - {"across_gbps"}),
        (Way(inside_bytes=1 << 24), set(MEASURED) - {"inside_gbps"}),
        (Way(gpus=4), set()),
        (Way(model="B200"), set()),
    ],
)
def test_a_speed_is_compared_only_with_those_measured_alike(
    path: Path, now: Way, compared: set[str]
) -> None:
    for _ in range(ENOUGH):
        keep_speeds(facts(700.0), (), path)
    found = usual(with_usual(facts(700.0, now), path))

    known = {name for name in MEASURED if found and getattr(found.speeds, name) is not None}
    assert known == compared


def test_checks_that_measured_otherwise_are_not_counted(path: Path) -> None:
    for way in (Way(), Way(), Way(), Way(gpus=4), Way(gpus=4)):
        keep_speeds(facts(700.0, way), (), path)
    found = usual(with_usual(facts(700.0), path))

    assert found
    assert found.checks == 3


def test_a_new_speed_that_stays_is_the_usual_one_after_three_checks(path: Path) -> None:
    """Also if the earlier ones were lucky: its warning is no reason not to keep it."""
    warned = (replace(warn(("a", "b"), "slower than before"), check="deep.history"),)
    for _ in range(KEPT):
        keep_speeds(facts(700.0), (), path)
    for _ in range(3):
        known = usual(with_usual(facts(500.0), path))
        assert known
        assert known.speeds.tflops == 700.0
        keep_speeds(facts(500.0), warned, path)
    known = usual(with_usual(facts(500.0), path))

    assert known
    assert known.speeds.tflops == 500.0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"nodes": 3}', '{"nodes": {"a": [{"tflops": "x"}]}}', '{"nodes": [1]}']
)
def test_a_damaged_file_is_as_none(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)

    assert read_history(path) == {}
    keep_speeds(facts(700.0), (), path)
    assert set(read_history(path)) == {"a", "b"}


def test_nothing_measured_writes_nothing(path: Path) -> None:
    keep_speeds({"a": NodeFacts(node="a")}, (), path)

    assert not path.exists()
