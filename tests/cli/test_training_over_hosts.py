"""The training program on real hosts: stopped behind a script, and resumed to its end."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.runs import ROOT, Project
from tests.train.tiny import LONGEST, make_corpus, make_model
from tests.waiting import BUSY

pytestmark = [pytest.mark.netns, pytest.mark.torch]

STEPS = 24
LONG = 2 * BUSY
"""Seconds for a training: three times torch must start on a busy machine."""
GRACE = 60
"""Seconds that a stopped job has to end."""
CONFIG = f"""\
name_or_path: /shared/tiny/model
dataset_path: /shared/tiny/train.jsonl
output_dir: /shared/tiny/out
seq_len: {LONGEST}
global_batch_size: 48
per_device_train_batch_size: 2
learning_rate: 1e-2
max_steps: {STEPS}
save_steps: 8
save_total_limit: 9
"""
JOB = """\
job:
  launcher: direct
  command: [-m, train, --config, tiny.yaml]
  env: {OMP_NUM_THREADS: "1"}
  needs: [/shared/tiny/model, /shared/tiny/train.jsonl]
  checkpoints: /shared/tiny/out
  resume_args: [--resume-from-checkpoint, "{checkpoint}"]
"""


@pytest.fixture
def tiny(project: Project) -> Path:
    """Put a model and data where the hosts see them, and the program where it is launched from."""
    folder = project.sandbox.shared / "tiny"
    shutil.rmtree(folder, ignore_errors=True)
    make_model(folder / "model")
    make_corpus(folder / "train.jsonl", 60)
    shutil.copytree(
        ROOT / "train", project.folder / "train", ignore=shutil.ignore_patterns("__pycache__")
    )
    (project.folder / "tiny.yaml").write_text(CONFIG)
    (project.folder / "hosts.yaml").write_text(project.inventory.read_text() + JOB)
    return folder


def launched(project: Project, *words: str) -> None:
    verb, *rest = words
    answer = project.run(verb, "-i", "hosts.yaml", *rest, seconds=LONG)
    assert answer.returncode == 0, answer.stderr


def losses(folder: Path) -> dict[int, tuple[float, float]]:
    records = map(json.loads, (folder / "out" / "metrics.jsonl").read_text().splitlines())
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in records if r["kind"] == "step"}


SLOW = """
import runpy, sys, time

from train.__main__ import uncollected
with uncollected():
    from train.trainer import Trainer

real = Trainer.update

def update(self, number, step):
    if number > 3 and "--resume-from-checkpoint" not in sys.argv:
        time.sleep(2)  # until it is stopped
    return real(self, number, step)

Trainer.update = update
runpy.run_module("train", run_name="__main__")
"""


def test_a_stop_behind_a_script_saves_and_the_rest_is_resumed(project: Project, tiny: Path) -> None:
    # That its losses are those of one long run, test_trainer.py shows bit for bit.
    few = ("--max-steps=12", "--save-steps=4", "--global-batch-size=8")
    assert sorted(stopped_and_resumed(project, tiny, *few)) == list(range(1, 13))


@pytest.mark.soak
def test_stopped_and_resumed_it_learns_what_one_long_run_learns(
    project: Project, tiny: Path
) -> None:
    launched(project, "launch", "--nodes", "2")
    whole = losses(tiny)
    assert sorted(whole) == list(range(1, STEPS + 1))
    (tiny / "out").rename(tiny / "whole")
    assert stopped_and_resumed(project, tiny) == whole


def stopped_and_resumed(
    project: Project, tiny: Path, *flags: str
) -> dict[int, tuple[float, float]]:
    """Stop a training on two hosts after some steps, resume it, and return what each step gave."""
    (project.folder / "slow.py").write_text(SLOW)
    # In a script, as most people start it: the stop must reach Python behind it, to save.
    script = f'python slow.py --config tiny.yaml {" ".join(flags)} "$@" 2>&1'
    (project.folder / "train.sh").write_text(
        f"set -o pipefail\n{script} | tee -a train-$RANK.txt\n"
    )
    words = ("launch", "-i", "hosts.yaml", "--nodes", "2", "--", "bash", "train.sh")
    with project.start(*words) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if re.search(r"Step 3/", line))
        began = time.monotonic()
        launched(project, "stop")
        assert time.monotonic() - began < GRACE  # it ended by itself, and saved: see below
        process.communicate(timeout=60)
    stopped_at = max(losses(tiny))
    newest = tiny / "out" / f"step-{stopped_at:06d}"
    assert newest.exists()
    assert stopped_at >= 3
    if project.status()["state"] == "finished":  # the machine was too busy to stop it sooner
        shutil.rmtree(newest)
    # That the number of ranks does not matter, test_trainer.py shows.
    launched(project, "resume", "--checkpoint", "latest", "--nodes", "1" if flags else "2")
    return losses(tiny)


@pytest.mark.soak  # tests/train/test_trainer.py shows that the number of ranks does not matter
def test_one_node_learns_what_two_learn(project: Project, tiny: Path) -> None:
    launched(project, "launch", "--nodes", "2")
    whole = losses(tiny)
    launched(project, "resume", "--checkpoint", "/shared/tiny/out/step-000008", "--nodes", "1")
    other = losses(tiny)
    assert sorted(other) == sorted(whole)
    for step, (loss, _) in whole.items():
        assert other[step][0] == pytest.approx(loss, abs=1e-5)


@pytest.mark.soak  # tests/cli/test_resume.py shows it with a smaller job
def test_latest_is_of_the_run_though_an_earlier_training_came_further(
    project: Project, tiny: Path
) -> None:
    launched(project, "launch", "--nodes", "1")
    with project.start("launch", "-i", "hosts.yaml", "--nodes", "1") as process:
        assert process.stdout is not None
        next(line for line in process.stdout if re.search(r"Step 2/", line))
        launched(project, "stop")
        process.communicate(timeout=60)
    status = project.status()
    assert list((tiny / "out").glob("step-*.aside-*"))
    path = Path(status["checkpoint"]["path"])
    manifest = json.loads((tiny / "out" / path.name / "MANIFEST.json").read_text())
    assert (manifest["run"], manifest["step"]) == (status["run"], status["checkpoint"]["step"])
    answer = project.run(
        "resume", "-i", "hosts.yaml", "--checkpoint", "latest", "--nodes", "1", seconds=LONG
    )
    assert answer.returncode == 0, answer.stderr
    assert f"checkpoint {path} (clusterctl" in answer.stderr
    assert "aside" not in answer.stderr
