"""`--smoke` does the whole of it on a toy, and says what fails."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.world import command, context
from tests.waiting import BUSY
from train.__main__ import main
from train.config.parse import parse
from train.errors import USAGE, ConfigError
from train.tools import demo_assets, smoke

pytestmark = pytest.mark.torch


@pytest.mark.soak
def test_a_toy_is_trained_resumed_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main(parse(["--smoke", "--lora-r=4", "--lora-dropout=0.1"])) == 0
    said = capsys.readouterr().out
    assert "resumed at step 2: the same losses bit for bit" in said
    assert "exported an adapter (r=4) that PEFT loads" in said


def test_the_toy_has_what_another_model_and_a_longer_training_need_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forked(argv: list[str], *, env: dict[str, str], **_: Any) -> Any:
        assert argv[:3] == [sys.executable, "-m", "train"]
        log = tmp_path / "log"
        process = context().Process(target=command, args=(argv[3:], env, log), daemon=True)
        process.start()
        process.join(BUSY)
        assert process.exitcode is not None, log.read_text()
        return subprocess.CompletedProcess(argv, process.exitcode, log.read_text(), "")

    # The soak above starts Python, and tokenizes all of the toy's data.
    monkeypatch.setattr(subprocess, "run", forked)
    samples = demo_assets._samples
    monkeypatch.setattr(demo_assets, "_samples", lambda: itertools.islice(samples(), 200))
    example = Path(__file__).parents[3] / "train" / "config.example.yaml"
    keys = [
        "--parallel=single",
        "--lora-target-modules=c_attn",
        "--gradient-accumulation-steps=32",
        "--save-total-limit=1",
    ]
    assert smoke.main(parse(["--smoke", f"--config={example}", *keys])) == 0


def test_the_toy_is_sent_to_no_tracker() -> None:
    assert not smoke._keys(parse(["--smoke", "--report-to=wandb"]))


def test_the_toys_warmup_is_its_own() -> None:
    steps = ["--warmup-steps=100", "--set=warmup_ratio=0"]
    assert not [key for key in smoke._keys(parse(["--smoke", *steps])) if "warmup" in key]


TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
}  # fmt: skip
SRUN = {
    "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "gpu07",
}  # fmt: skip


@pytest.mark.parametrize("launcher", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_only_the_first_rank_of_a_node_trains_the_toy(
    monkeypatch: pytest.MonkeyPatch, launcher: dict[str, str]
) -> None:
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(smoke, "_stages", lambda *_: pytest.fail("a second toy"))
    assert smoke.main(parse(["--smoke"])) == 0


def test_a_launch_that_lacks_variables_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main(["--smoke"]) == USAGE
    assert capsys.readouterr().err.startswith("error: RANK, WORLD_SIZE")


def test_the_toy_meets_no_other_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launcher `direct` sets PET_NNODES, for which torchrun would wait in vain."""
    given: dict[str, str] = {}

    def run(_: list[str], *, env: dict[str, str], **__: Any) -> subprocess.CompletedProcess[str]:
        given.update(env)
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setattr(subprocess, "run", run)
    smoke._train(tmp_path, 2, [])
    assert given
    assert not {"PET_NNODES", "NNODES"} & given.keys()


def test_a_configuration_that_cannot_be_is_refused_first() -> None:
    with pytest.raises(ConfigError, match="lora_r"):
        smoke.main(parse(["--smoke", "--lora-r=0"]))
