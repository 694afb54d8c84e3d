"""The mark `gpu`: a question for a GPU that leaves pytest's process able to fork for CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests import gpu_marker

NVIDIA_SMI = "#!/bin/sh\nexit 0\n"
MARKED = "import pytest\n@pytest.mark.gpu\ndef test_it(): pass\n"


@pytest.mark.torch
def test_the_question_for_a_gpu_imports_no_torch_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "test_marked.py").write_text(MARKED)
    program = (
        "import os, sys, pytest\n"
        "code = pytest.main(sys.argv[1:])\n"
        "print('imported' if 'torch' in sys.modules else 'not imported', int(code))\n"
    )
    words = ["-q", "-rs", "-p", "tests.conftest", str(tmp_path), "-c", os.devnull]
    words += ["-p", "no:cacheprovider", "-W", "ignore", "--import-mode=importlib"]
    words += [f"--basetemp={tmp_path / 'base'}"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=Path(__file__).absolute().parents[1],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert done.stdout.splitlines()[-1] == "not imported 0", done.stdout + done.stderr
    assert "1 skipped" in done.stdout or "1 passed" in done.stdout


@pytest.mark.parametrize("poisoned", [True, False])
def test_a_fork_tells_whether_cuda_was_used(
    monkeypatch: pytest.MonkeyPatch, *, poisoned: bool
) -> None:
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: poisoned)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert gpu_marker.forks_may_use_cuda() is not poisoned


def test_a_test_that_uses_cuda_in_this_process_fails(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(gpu_marker, "forks_may_use_cuda", lambda: False)
    gpu_marker.pytest_runtest_teardown(request.node)  # it has no mark
    request.node.add_marker("gpu")
    with pytest.raises(pytest.fail.Exception, match="started CUDA in pytest's process"):
        gpu_marker.pytest_runtest_teardown(request.node)
    request.node.own_markers.clear()


def test_a_gpu_that_is_required_and_not_there_fails_its_tests(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(gpu_marker, "has_gpu", lambda: False)
    request.node.add_marker("gpu")
    with pytest.raises(pytest.skip.Exception):
        gpu_marker.pytest_runtest_setup(request.node)
    monkeypatch.setenv("CLUSTERCTL_TESTS_REQUIRE", "netns,gpu")
    with pytest.raises(pytest.fail.Exception, match="requires one"):
        gpu_marker.pytest_runtest_setup(request.node)
    request.node.own_markers.clear()
