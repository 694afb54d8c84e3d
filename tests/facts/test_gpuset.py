"""Which GPUs a job's variables choose: exactly those that are certain, else none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.facts.gpu.accelerators import Gpu, Gpus, chosen_gpus


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-000000000000"


DEVICES = tuple(
    Gpu(index=n, name="H100", uuid=uuid(n), bus_id=f"00000000:{16 + n:02X}:00.0") for n in range(4)
)
GPUS = Gpus(tool="nvidia-smi", devices=DEVICES)


def chosen(value: str, gpus: Gpus = GPUS, **env: str) -> list[int]:
    return [gpu.index for gpu in chosen_gpus({"CUDA_VISIBLE_DEVICES": value, **env}, (), gpus)]


@pytest.mark.parametrize(
    ("value", "indices"),
    [("0", [0]), ("2,1", [2, 1]), (uuid(3), [3]), (f"{uuid(3)},{uuid(0)}", [3, 0])],
)
def test_indices_and_uuids_name_gpus(value: str, indices: list[int]) -> None:
    assert chosen(value) == indices


@pytest.mark.parametrize(
    "value",
    ["", "4", "0,4", "0,0", "0, 1", "-1", "01", "0,", "all", f"0,{uuid(1)}", uuid(9), uuid(1)[:12],
     "MIG-00000000-0000-0000-0000-000000000000", f"MIG-{uuid(1)}/1/0"],
)  # fmt: skip
def test_what_is_not_certain_names_none(value: str) -> None:
    assert chosen(value) == []


def test_no_gpus_are_certain_when_the_node_or_the_job_counts_otherwise() -> None:
    assert chosen("0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0]
    assert chosen("0", CUDA_DEVICE_ORDER="FASTEST_FIRST") == []
    assert chosen_gpus({"CUDA_VISIBLE_DEVICES": "0"}, ("CUDA_VISIBLE_DEVICES",), GPUS) == ()
    assert chosen_gpus({"CUDA_VISIBLE_DEVICES": "0"}, ("CUDA_DEVICE_ORDER",), GPUS) == ()
    assert chosen_gpus({}, (), GPUS) == ()
    assert chosen_gpus({"CUDA_VISIBLE_DEVICES": "0"}, (), None) == ()
    assert chosen("0", replace(GPUS, tool="amd-smi")) == []
    assert chosen("0", replace(GPUS, devices=tuple(reversed(DEVICES)))) == []
    for odd in (replace(DEVICES[3], mig=True), replace(DEVICES[3], uuid=""), DEVICES[2]):
        assert chosen("0", replace(GPUS, devices=(*DEVICES[:3], odd))) == []
