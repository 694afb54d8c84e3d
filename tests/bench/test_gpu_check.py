"""`make gpu` as a whole: its exit codes, its budget and its report, on a machine without a GPU."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import check, machine
from bench.gpu.card import Cards, difference
from bench.gpu.check import FAILED, INTERRUPTED, OK, Check
from bench.gpu.figures import collect, figure
from bench.gpu.ladder import problems
from bench.gpu.machine import ROOT, Machine
from bench.gpu.masks import Masks
from bench.gpu.plan import Sizes, sizes, steps
from bench.gpu.steps import Step

MACHINE = Machine(python=sys.executable, version=(3, 12, 3), torch="2.11.0", gpus=("NVIDIA H100",))
GOOD = "print('fine')"
ABSENT = ("paramiko", "fabric", "invoke", "cryptography", "bcrypt", "rich", "shtab",
          "rich_argparse", "platformdirs", "flash_attn")  # fmt: skip
"""Packages that a machine for trainings need not have."""


def step(name: str, program: str = GOOD, **more: Any) -> Step:
    argv = (sys.executable, "-c", program)
    return Step(**{"name": name, "about": name, "argv": argv, "limit": 30.0, **more})


def make_check(folder: Path, *, budget: float = 60.0) -> Check:
    (folder / "work").mkdir()
    options = argparse.Namespace(cpu=True, out=folder / "out", budget=budget)
    found = Check(options, MACHINE, os.environ, folder / "work")
    found.masks = Masks([("trainbox7", "HOST")])
    return found


def states(found: Check) -> dict[str, str]:
    return {result.name: result.state for result in found.results}


def test_steps_that_end_well_give_a_report_and_code_0(tmp_path: Path) -> None:
    found = make_check(tmp_path)
    code = found.run([step("a"), step("b", "print('on trainbox7')", needs=("a",))])

    assert code == OK
    assert (tmp_path / "out/steps/b.txt").read_text() == "on HOST\n"
    rows = [json.loads(line) for line in (tmp_path / "out/report.jsonl").read_text().splitlines()]
    assert [row.get("state") for row in rows] == [None, "ok", "ok"]
    page = (tmp_path / "out/report.md").read_text()
    assert "On a CPU with a tiny model: this proves the script, not the figures." in page
    assert "| b | ok |" in page


def test_a_step_that_fails_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = make_check(tmp_path)
    broken = "import sys; print('NCCL error on trainbox7'); sys.exit(3)"
    code = found.run([step("a", broken), step("b", needs=("a",)), step("c")])

    assert code == FAILED
    assert states(found) == {"a": "failed", "b": "skipped", "c": "ok"}
    page = (tmp_path / "out/report.md").read_text()
    assert "NCCL error on HOST" in page
    assert "| b | skipped | - | needs a, which is failed |" in page
    assert "exit code 3" in capsys.readouterr().out


def test_a_hang_ends_and_is_named_in_the_report(tmp_path: Path) -> None:
    found = make_check(tmp_path)
    code = found.run([step("a", "import time; time.sleep(600)", limit=1.0), step("b")])

    assert code == FAILED
    assert states(found) == {"a": "hang", "b": "ok"}
    assert "did not end within 1 s" in (tmp_path / "out/report.md").read_text()


def test_no_step_starts_after_the_budget_and_that_is_no_success(tmp_path: Path) -> None:
    found = make_check(tmp_path, budget=12.0)
    code = found.run([step("a", "import time; time.sleep(3)"), step("b"), step("c")])

    assert code == FAILED
    assert states(found) == {"a": "ok", "b": "skipped", "c": "skipped"}
    assert found.results[1].reason == "no time left: the budget is 12 s"


def test_too_few_gpus_are_no_failure(tmp_path: Path) -> None:
    found = make_check(tmp_path)
    found.cpu = False
    result = found.one(step("a", gpus=2), until=float("inf"))

    assert (result.state, result.reason) == ("skipped", "needs 2 GPUs, found 1")
    assert not result.possible


def test_a_step_sees_one_gpu_unless_it_is_for_all(tmp_path: Path) -> None:
    found = make_check(tmp_path)
    found.cpu = False
    found.machine = Machine(python="", gpus=("A", "A"))
    found.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "5,7"}
    program = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    for name, more in (("one", {}), ("all", {"gpus": 2, "all_gpus": True})):
        found.one(step(name, program, **more), until=float("inf"))

    assert (tmp_path / "work/one.txt").read_text() == "5\n"
    assert (tmp_path / "work/all.txt").read_text() == "5,7\n"


def test_an_interrupt_ends_the_step_and_still_reports(tmp_path: Path) -> None:
    found = make_check(tmp_path)
    # Not while Popen still starts it: then nothing would know of it.
    interrupt = "import os, time; time.sleep(1)"
    interrupt += f"; os.kill({os.getpid()}, {signal.SIGINT}); time.sleep(600)"
    code = found.run([step("a"), step("b", interrupt), step("c")])

    assert code == INTERRUPTED
    assert states(found) == {"a": "ok", "b": "skipped", "c": "skipped"}
    assert "interrupted" in (tmp_path / "out/report.md").read_text()


def start(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu", *words], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip


@pytest.mark.torch
@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU here")
def test_without_a_gpu_it_names_what_it_needs(tmp_path: Path) -> None:
    done = start("--python", sys.executable, "--out", str(tmp_path / "out"))

    assert done.returncode == 3
    assert "expected Python 3.11 or newer with torch" in done.stderr
    assert f"{sys.executable}: torch" in done.stderr
    assert "nvidia-smi: not found" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: ")
    assert not (tmp_path / "out").exists()


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = start("--python", str(tmp_path / "python"))

    assert done.returncode == 3
    assert f"{tmp_path / 'python'}: not found" in done.stderr


def test_an_unknown_option_is_a_usage_error() -> None:
    assert start("--no-such-option").returncode == 2


def test_an_unknown_step_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "choose", lambda *_, **__: (MACHINE, ()))
    assert check.main(["--cpu", "--only", "sea", "--out", str(tmp_path / "o")]) == 2
    assert "expected one of recordings, fork, " in capsys.readouterr().err


@pytest.mark.torch
def test_real_steps_run_on_a_cpu(tmp_path: Path) -> None:
    words = ["--cpu", "--python", sys.executable]
    for name in ("recordings", "fork"):  # the soak below has the others
        words += ["--only", name]
    done = start(*words, OUT=str(tmp_path / "out"))

    assert done.returncode == 0, done.stdout
    assert "this proves the script, not the figures" in done.stdout
    assert "torch 2" in (tmp_path / "out/recordings/versions.txt").read_text()
    texts = [path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [text for text in texts if str(ROOT) in text]


@pytest.mark.soak
@pytest.mark.torch
def test_every_step_runs_on_a_cpu(tmp_path: Path) -> None:
    done = start("--cpu", "--python", sys.executable, "--budget", "1800", OUT=str(tmp_path / "out"))

    assert done.returncode == 0, done.stdout
    for name in (
        "tok/s, train / Trainer",
        "full: memory, estimated / measured",
        "all GPUs",
        "tests-probe: passed",
    ):
        assert name in done.stdout


@pytest.mark.torch
@pytest.mark.parametrize("name", ["tests-train", "tests-probe"])
def test_the_gpu_tests_need_no_package_that_a_gpu_machine_lacks(tmp_path: Path, name: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {ABSENT}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    size = Sizes(batch=8, seq_len=2048, steps=40, tiny=False)
    made = {each.name: each for each in steps(MACHINE, size, work=tmp_path, cpu=False)}
    done = subprocess.run(
        [*made[name].argv, "--collect-only"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "cuda" in done.stdout
    assert "error" not in done.stdout.lower()


def test_a_smaller_card_gets_a_smaller_batch() -> None:
    batches = [
        sizes(Machine(python="", memory=gib << 30), cpu=False).batch for gib in (141, 79, 44, 24, 8)
    ]
    assert batches == [8, 8, 4, 2, 1]


BENCH = {
    "bench-train": {"seconds": 0.5, "tokens": 16000, "memory": 28.0, "mfu": 0.4},
    "bench-trainer": {"seconds": 0.7, "tokens": 16000, "memory": 30.0},
}


def verdicts(outputs: dict[str, str], work: Path) -> dict[str, tuple[Any, str]]:
    return {each.name: (each.value, each.verdict) for each in collect(outputs, work)}


def test_figures_are_compared_with_what_is_expected(tmp_path: Path) -> None:
    outputs = {name: f"a banner\n{json.dumps(row)}\n" for name, row in BENCH.items()}
    found = verdicts(outputs, tmp_path)

    assert found["tok/s, train / Trainer"] == (pytest.approx(1.4), "ok")
    assert found["peak memory, train / Trainer"] == (pytest.approx(28 / 30), "differs")
    assert "tok/s, train / plain loop" not in found


def test_an_estimate_is_compared_with_what_was_allocated(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    rows = [{"kind": "step", "step_s": 1.0, "memory": 20 * 2**30}] * 6
    (tmp_path / "full/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = "ok    memory      about 26.5 GiB (weights 2.0, activations 23.0, overhead 1.5) on a GPU"
    found = verdicts({"run-full": "", "check-full": said}, tmp_path)

    assert found["full: memory, estimated / measured"] == (pytest.approx(1.25), "differs")
    assert found["full: seconds per step"] == (1.0, "not judged")


def test_what_a_step_should_have_printed_and_did_not_is_unknown(tmp_path: Path) -> None:
    found = verdicts({"run-full": "", "check-full": "ok", "tests-train": ""}, tmp_path)

    assert found["full: memory, estimated / measured"] == (None, "unknown")
    assert found["tests-train: passed"] == (None, "unknown")


def test_tests_that_fail_or_are_skipped_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tests-train.xml").write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="1" skipped="3"/></testsuites>'
    )
    found = verdicts({"tests-train": ""}, tmp_path)

    assert found["tests-train: passed"] == (4.0, "ok")
    assert found["tests-train: failed"] == (2.0, "differs")
    assert found["tests-train: skipped"] == (3.0, "not judged")


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.9, "ok"), (1.1, "ok"), (0.89, "differs"), (None, "unknown")]
)
def test_a_bound_is_part_of_what_is_expected(value: float | None, verdict: str) -> None:
    assert figure("a", value, least=0.9, most=1.1).verdict == verdict


def test_what_is_left_on_a_card_is_named() -> None:
    before = Cards(processes=frozenset({"1, other"}), used_mib=(500, 0))

    assert difference(before, Cards(processes=before.processes, used_mib=(560, 0))) == ()
    after = Cards(processes=before.processes | {"7, python3"}, used_mib=(500, 900))
    assert difference(before, after) == ("process 7, python3", "GPU 1: 900 MiB used, 0 MiB before")
    assert difference(before, Cards(error="nvidia-smi: lost")) == ("nvidia-smi: lost",)


def test_a_ladder_without_a_result_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    works = {"name": "gpus", "works": True, "seconds": 1.0}

    assert problems(json.dumps({"rungs": [works]})) == 0
    assert problems(json.dumps({"rungs": [works, {**works, "works": False}]})) == 1
    assert problems(json.dumps({"rungs": []})) == 1
    assert problems("") == 1
