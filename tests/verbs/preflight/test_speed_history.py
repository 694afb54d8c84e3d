"""The speeds of earlier good checks with `--deep`: kept, bounded, and given to later checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.checks.finding import warn
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.values.accelerators import Gpu, Gpus
from clusterctl.facts.values.ladder import GpuTrial, Ladder
from clusterctl.facts.values.pairwise import Collective
from clusterctl.verbs.preflight.speed_history import KEPT, keep_speeds, read_history, with_usual

SLOW = (replace(warn("b", "slow"), check="deep.gpus"),)


def facts(tflops: float, *, nodes: str = "ab", model: str = "H100") -> dict[str, NodeFacts]:
    trial = GpuTrial(index=0, wrong_numbers=0, wrong_copies=0, tflops=tflops, memory_gb_s=2000.0)
    return {
        name: NodeFacts(
            node=name,
            gpus=Gpus(tool="nvidia-smi", devices=(Gpu(index=0, name=model),)),
            ladder=Ladder(gpus=(trial,)),
            across=Collective(right=True, gbps=300.0),
        )
        for name in nodes
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "lab" / "deep-speeds.json"


def test_a_later_check_gets_the_median_of_the_good_ones(path: Path) -> None:
    for tflops in (700.0, 690.0, 400.0):
        keep_speeds(facts(tflops), (), path)
    found = with_usual(facts(650.0), path)["a"].ladder

    assert found
    assert found.usual
    assert (found.usual.speeds.tflops, found.usual.checks) == (690.0, 3)
    assert found.usual.file == str(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_node_of_which_a_deep_check_complains_is_not_kept(path: Path) -> None:
    keep_speeds(facts(700.0), SLOW, path)

    assert list(read_history(path)) == ["a"]


def test_few_checks_are_kept(path: Path) -> None:
    for number in range(KEPT + 4):
        keep_speeds(facts(float(number + 1)), (), path)

    assert [one.tflops for one in read_history(path)["a"]] == [5.0, 6.0, 7.0, 8.0, 9.0]


def test_other_gpus_are_not_compared_and_other_numbers_of_nodes_not_across(path: Path) -> None:
    keep_speeds(facts(700.0), (), path)
    more = with_usual(facts(700.0, nodes="abc"), path)["a"].ladder
    other = with_usual(facts(700.0, model="B200"), path)["a"].ladder

    assert more
    assert more.usual
    assert other
    assert (more.usual.speeds.tflops, more.usual.speeds.across_gbps) == (700.0, None)
    assert other.usual is None


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
