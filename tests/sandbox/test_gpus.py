"""The stand-in nvidia-smi answers as the real one would, for GPUs that are not there."""

from __future__ import annotations

import shlex
import xml.etree.ElementTree as ET

import pytest

from clusterctl.errors import UsageError
from clusterctl.facts.gpu.nvidia import parse_nvidia_smi
from clusterctl.node.run.processes.release_check import FORMAT, QUERY
from clusterctl.sandbox import gpus
from tests.conftest import MakeSandbox


@pytest.mark.parametrize("text", ["H100", "x8", "H100x0", "K80x2", "H100x8x8", "H100 x 8"])
def test_what_is_no_model_and_count_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as H100x8"):
        gpus.parse(text)


def test_the_document_tells_model_count_and_memory() -> None:
    root = ET.fromstring(gpus.document(gpus.parse("h200x4"), host="node1"))
    cards = root.findall("gpu")
    assert root.findtext("attached_gpus") == "4"
    assert {card.findtext("product_name") for card in cards} == {"NVIDIA H200"}
    assert {card.findtext("fb_memory_usage/total") for card in cards} == {"143771 MiB"}
    assert len({card.findtext("uuid") for card in cards}) == 4
    assert len({card.findtext("pci/pci_bus_id") for card in cards}) == 4


@pytest.mark.parametrize("backend", ["netns", "loopback"])
def test_it_is_found_over_ssh_and_can_break(make_sandbox: MakeSandbox, backend: str) -> None:
    box = make_sandbox(nodes=1, backend=backend, gpus=gpus.parse("A100x8"))  # type: ignore[arg-type]

    def listed() -> int:
        return box.run(["ssh", "node1", "nvidia-smi -L"]).stdout.count("A100-SXM4")

    assert listed() == 8
    assert box.run(["ssh", "node1", "nvidia-smi"]).stdout.count("A100-SXM4") == 8
    held = box.run(["ssh", "node1", shlex.join([*QUERY, FORMAT])])
    assert (held.returncode, held.stdout) == (0, "")
    box.fault("node1", "gpu-missing")
    assert listed() == 7
    box.heal()
    box.fault("node1", "gpu-lost")
    log = box.run(["ssh", "node1", "nvidia-smi -q -x"]).stdout
    assert [bool(gpu.lost) for gpu in parse_nvidia_smi(log).devices] == [False] * 7 + [True]
    box.heal()
    box.fault("node1", "gpu-driver-lost")
    failed = box.run(["ssh", "node1", "nvidia-smi -q -x"])
    assert (failed.returncode, "communicate with the NVIDIA driver" in failed.stdout) == (9, True)
    box.heal()
    assert listed() == 8


def test_a_question_it_does_not_know_is_said_to_be_one(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=1, gpus=gpus.parse("A100x8"))
    done = box.run(["ssh", "node1", "nvidia-smi topo -m"])
    assert done.returncode == 2
    assert "stand-in" in done.stderr
