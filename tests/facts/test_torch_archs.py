"""Which GPUs a build of torch runs on, and which drivers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.checks.gpu.torch_gpus import driver_supports, supports

CU118 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


@pytest.mark.parametrize(
    ("archs", "device", "fits"),
    [
        (CU118, "sm_90", True),
        (CU118, "sm_89", True),  # runs the code of sm_86
        (CU118, "sm_120", False),
        (CU118, "sm_52", True),
        (CU118, "sm_37", False),
        (("sm_90a",), "sm_90", True),
        (("sm_100a",), "sm_103", False),
        (("sm_100f",), "sm_103", True),
        (("compute_90",), "sm_120", True),
        (("compute_90a",), "sm_120", False),
        (("compute_120",), "sm_90", False),
        (("gfx90a", "gfx942"), "gfx942", True),
        (("gfx90a",), "gfx942", False),
        ((), "sm_90", False),
    ],
)
def test_code_for_a_gpu(archs: tuple[str, ...], device: str, fits: bool) -> None:  # noqa: FBT001
    assert supports(archs, device) == fits


@pytest.mark.parametrize(
    ("driver", "build", "fits"),
    [
        ("12.2", "12.8", True),  # minor version compatibility
        ("13.0", "12.8", True),
        ("12.8", "13.0", False),
        ("11.4", "12.1", False),
        ("12.8", "rocm6.4", None),
        ("12.8", "cpu", None),
        ("", "12.8", None),
    ],
)
def test_a_driver_for_a_build(driver: str, build: str, fits: bool | None) -> None:  # noqa: FBT001
    assert driver_supports(driver, build) == fits


TEXT = st.text(alphabet="sm_compute0123456789.af", max_size=12) | st.text(max_size=6)


@given(st.lists(TEXT, max_size=3), TEXT)
def test_no_name_breaks_it(archs: list[str], device: str) -> None:
    assert supports(archs, device) in {True, False}
    assert driver_supports(device, device) in {True, None}
