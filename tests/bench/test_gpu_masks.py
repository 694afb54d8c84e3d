"""What a report must not show of a machine."""

from __future__ import annotations

import pytest

from bench.gpu.masks import Masks

KNOWN = [("trainbox7", "HOST"), ("10.1.2.30", "ADDRESS"), ("alice", "USER"), ("/scratch/x", "WORK")]

RECORDING = """<gpu id="00000000:3B:00.0">
  <serial>1650322000123</serial>
  <uuid>GPU-9a1b2c3d-0011-2233-4455-66778899aabb</uuid>
  <pdi>0x1f2e3d4c5b6a7988</pdi>
  <chassis_serial_number>1820399000777</chassis_serial_number>
  <gpu_fabric_guid>0x5ca1ab1e00c0ffee</gpu_fabric_guid>
  <driver_version>580.159.04</driver_version>
</gpu>
<gpu><serial>1650322000124</serial><pdi>N/A</pdi>
<uuid>GPU-9a1b2c3d-0011-2233-4455-66778899aabb</uuid></gpu>
"""


def test_a_recording_keeps_its_form_and_loses_its_numbers() -> None:
    found = Masks().apply(RECORDING)

    for secret in ("165032", "9a1b2c3d", "1f2e3d4c", "182039", "5ca1ab1e"):
        assert secret not in found
    assert found.count("<uuid>GPU-00000000-0000-0000-0000-000000000001</uuid>") == 2
    assert "<serial>MASKED-1</serial>" in found
    assert "<serial>MASKED-5</serial>" in found
    assert "<pdi>N/A</pdi>" in found
    assert "<driver_version>580.159.04</driver_version>" in found
    assert "00000000:3B:00.0" in found


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("trainbox7:312 NCCL INFO", "HOST:312 NCCL INFO"),
        ("[rank0]: trainbox77 is another", "[rank0]: trainbox77 is another"),
        ("tcp://10.1.2.30:29500", "tcp://ADDRESS:29500"),
        ("10.1.2.301", "10.1.2.301"),
        ("/home/bob/.cache/x", "/home/USER/.cache/x"),
        ("/scratch/x/model of alice", "WORK/model of USER"),
        ("link/ether 0c:42:a1:3f:00:9b brd", "link/ether MAC-1 brd"),
        ("    Serial Number        : 1650322000123", "    Serial Number        : MASKED-1"),
        ("    Serial Number        : N/A", "    Serial Number        : N/A"),
        ("GPU UUID: \t GPU-9a1b2c3d-0011-2233-4455-66778899aabb",
         "GPU UUID: \t GPU-00000000-0000-0000-0000-000000000001"),
    ],
)  # fmt: skip
def test_a_line_is_masked(text: str, masked: str) -> None:
    assert Masks(KNOWN).apply(text) == masked


def test_masking_twice_changes_nothing() -> None:
    masks = Masks(KNOWN)
    once = masks.apply(RECORDING)
    assert masks.apply(once) == once
