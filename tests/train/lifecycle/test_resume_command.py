"""The command that resumes a training, as a person would type it."""

from __future__ import annotations

import sys

import pytest

from train.lifecycle.resume_command import resume_command

TYPED = ["python", "-m", "train", "--config", "a.yaml"]


@pytest.mark.parametrize(
    "before",
    [
        [],
        ["--resume-from-checkpoint", "out/step-000001"],
        ["--resume-from-checkpoint=out/step-000001"],
        ["--set", "resume_from_checkpoint=out/step-000001"],
        ["--set=checkpoint.resume_from_checkpoint=latest"],
    ],
)
def test_a_checkpoint_that_was_typed_before_does_not_win(
    monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    monkeypatch.delenv("CLUSTERCTL_RUN_ID", raising=False)
    monkeypatch.setattr(sys, "orig_argv", [*TYPED, *before, "--set", "seed=3"])
    said = resume_command("out/step 2", launched=False)
    assert said == f"{' '.join(TYPED)} --set seed=3 --resume-from-checkpoint 'out/step 2'"


def test_without_a_checkpoint_it_is_the_same_training_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "orig_argv", TYPED)
    monkeypatch.delenv("CLUSTERCTL_RUN_ID", raising=False)
    assert resume_command("", launched=False) == " ".join(TYPED)
    assert resume_command("", launched=True) == "the same command once more"
