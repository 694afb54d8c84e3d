"""Trackers: the Trainer's names, one run over resumes, and no step that waits for them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train import preflight
from train.config.config import Config
from train.observe import trackers
from train.observe.trackers import Trackers

STEP = {
    "kind": "step", "time": 1700000000.0, "step": 1, "total": 9, "loss": 3.5, "lr": 1e-4,
    "grad_norm": 1.0, "tok_s": 100.0, "eval_s": 2.0, "resumed_from": None, "slow": [],
    "padded_tokens": 64, "places": 64,
}  # fmt: skip
EVAL = {"kind": "eval", "time": 1700000001.0, "step": 1, "eval_loss": 2.5, "eval_s": 2.0}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        name_or_path="https://me:hunter2@hub/m",
        dataset_path="d",
        output_dir=str(tmp_path / "output"),
        report_to=("wandb", "mlflow"),
        project="guides",
        run_name="first",
        chat_template_kwargs={"api_key": "hunter2", "numbers": {1: "one"}},
    )


WANDB = """
import json, os, time
def note(*call):
    with open(os.environ["RECORDED"], "a") as file:
        file.write(json.dumps(call, default=str) + chr(10))
def fault(where):
    what = os.environ.get("FAULT_AT_" + where)
    if what == "hang":
        note("hang")
        time.sleep(1000)
    if what:
        raise ConnectionError("https://me:hunter2@hub/ does not answer" + chr(10) + "more")
Settings = dict
class Run:
    def __init__(self, about):
        self.id = about["id"] or "w1"
    def define_metric(self, *about, **more):
        note("define_metric", *about)
    def log(self, values):
        fault("LOG")
        note("log", values)
    def finish(self, exit_code):
        note("finish", exit_code)
def init(**about):
    note("init", about)
    fault("INIT")
    return Run(about)
"""
MLFLOW = """
from types import SimpleNamespace as Object
from wandb import note
class MlflowClient:
    tracking_uri = "https://me:hunter@2@mlflow.lab/"
    def get_experiment_by_name(self, name):
        return None
    def create_experiment(self, name):
        note("create_experiment", name)
        return "7"
    def create_run(self, experiment, run_name):
        note("create_run", experiment, run_name)
        return Object(info=Object(run_id="m1"))
    def update_run(self, run_id, status):
        note("update_run", run_id, status)
    def log_batch(self, run_id, metrics=(), params=()):
        note("log_batch", run_id, metrics, params)
    def set_terminated(self, run_id, status):
        note("set_terminated", run_id, status)
"""
ENTITIES = "Metric = lambda *about: about\nParam = lambda *about: about\n"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install packages that record what they are asked, and fail as FAULT_AT_ says."""
    packages = tmp_path / "packages"
    (packages / "mlflow").mkdir(parents=True)
    (packages / "wandb.py").write_text(WANDB)
    (packages / "mlflow" / "__init__.py").write_text(MLFLOW)
    (packages / "mlflow" / "entities.py").write_text(ENTITIES)
    (tmp_path / "output").mkdir()
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("RECORDED", str(tmp_path / "recorded"))
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1")  # undone with the others that are set
    monkeypatch.setenv("WANDB_LOGIN_TIMEOUT", "1")
    yield tmp_path / "recorded"
    for name in ("wandb", "mlflow", "mlflow.entities"):
        sys.modules.pop(name, None)


def calls(recorded: Path, name: str) -> list[list[Any]]:
    """Return the arguments of the calls of a name."""
    lines = map(json.loads, recorded.read_text().splitlines())
    return [arguments for called, *arguments in lines if called == name]


def test_metrics_have_the_trainers_names(config: Config, recorded: Path) -> None:
    with Trackers(config, config.report_to, step=0) as sent:
        sent.log(STEP)
        sent.log(EVAL)
    step, evaluation = (values for (values,) in calls(recorded, "log"))
    assert step == {
        "train/loss": 3.5, "train/learning_rate": 1e-4, "train/grad_norm": 1.0,
        "train/tokens_per_second": 100.0, "train/padded_tokens": 64.0, "train/global_step": 1,
    }  # fmt: skip
    assert evaluation == {"eval/loss": 2.5, "eval/runtime": 2.0, "train/global_step": 1}
    points = [point for _, points, _ in calls(recorded, "log_batch") for point in points]
    assert ["loss", 3.5, 1700000000000, 1] in points
    assert ["eval_loss", 2.5, 1700000001000, 1] in points
    assert calls(recorded, "finish") == [[0]]
    assert calls(recorded, "set_terminated") == [["m1", "FINISHED"]]


def test_a_resume_continues_the_trackers_runs(config: Config, recorded: Path) -> None:
    for step in (0, 4, 0):
        with Trackers(config, config.report_to, step=step) as sent:
            sent.log(STEP | {"step": step + 1})
    assert [about["id"] for (about,) in calls(recorded, "init")] == [None, "w1", None]
    assert [about["resume"] for (about,) in calls(recorded, "init")] == [None, "allow", None]
    assert calls(recorded, "create_run") == [["7", "first"]] * 2
    assert calls(recorded, "update_run") == [["m1", "RUNNING"]] * 3


def test_no_secret_is_sent_or_printed(
    config: Config, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Trackers(config, config.report_to, step=0):
        pass
    said = capsys.readouterr().err
    assert "mlflow: run m1 at https://mlflow.lab/\n" in said
    assert "hunter" not in said
    assert "hunter2" not in recorded.read_text()
    (about,) = calls(recorded, "init")[0]
    assert about["config"]["name_or_path"] == "https://hub/m"
    kwargs = {"api_key": "(secret)", "numbers": {1: "one"}}
    assert about["config"]["chat_template_kwargs"] == kwargs | {"numbers": {"1": "one"}}
    assert ["name_or_path", "https://hub/m"] in calls(recorded, "log_batch")[0][2]
    assert (about["project"], about["name"]) == ("guides", "first")
    assert calls(recorded, "create_experiment") == [["guides"]]


def test_secrets_are_known_by_their_names_and_the_rest_is_sent() -> None:
    secret = ("hf_token", "api-key", "PRIVATE_KEY", "passwd", "basic_auth", "aws_credentials")
    open_ = ("tokenizer", "is_tokenized", "author", "keyword", "monkey")
    sent = trackers.without_secrets(dict.fromkeys(secret + open_, "x"))
    assert sent == dict.fromkeys(secret, "(secret)") | dict.fromkeys(open_, "x")


@pytest.mark.parametrize("where", ["INIT", "LOG"])
def test_a_tracker_that_fails_is_named_once_and_holds_up_no_other(
    config: Config,
    recorded: Path,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"FAULT_AT_{where}", "raise")
    with Trackers(config, config.report_to, step=0) as sent:
        for step in range(1, 4):
            sent.log(STEP | {"step": step})
            time.sleep(0.01)
    said = capsys.readouterr().err
    words = "cannot start, the training continues without it" if where == "INIT" else "cannot send"
    assert said.count(f"wandb: {words}") == 1
    assert "ConnectionError: https://hub/ does not answer\n" in said
    assert "hunter2" not in said
    assert calls(recorded, "set_terminated")


def test_a_tracker_that_could_not_start_is_not_called_slow(
    config: Config,
    recorded: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAULT_AT_INIT", "raise")
    monkeypatch.setattr(trackers, "WAITING", 5)
    with Trackers(config, ("wandb",), step=0) as sent:
        until = time.monotonic() + 20
        while "cannot start" not in capsys.readouterr().err and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)  # the thread ends
        for step in range(1, 10):
            sent.log(STEP | {"step": step})
    assert capsys.readouterr().err == ""
    assert not calls(recorded, "finish")


def test_a_step_never_waits_for_a_tracker_that_hangs(
    config: Config,
    recorded: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAULT_AT_LOG", "hang")
    monkeypatch.setattr(trackers, "WAITING", 5)
    monkeypatch.setattr(trackers, "FLUSH_SECONDS", 0.3)
    with Trackers(config, ("wandb",), step=0) as sent:
        sent.log(STEP)
        until = time.monotonic() + 20
        while not (recorded.exists() and calls(recorded, "hang")) and time.monotonic() < until:
            time.sleep(0.01)
        began = time.monotonic()
        for step in range(2, 10):
            sent.log(STEP | {"step": step})
    assert time.monotonic() - began < 5
    assert "wandb: did not finish in time, up to 9 records not sent" in capsys.readouterr().err


def test_a_failed_training_is_marked_as_failed(config: Config, recorded: Path) -> None:
    with pytest.raises(ZeroDivisionError), Trackers(config, config.report_to, step=0):
        raise ZeroDivisionError
    assert calls(recorded, "finish") == [[1]]
    assert calls(recorded, "set_terminated") == [["m1", "FAILED"]]


def test_a_package_that_is_not_installed_is_named_with_its_command(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "wandb").mkdir()  # as W&B leaves it where it was run offline: no package
    monkeypatch.syspath_prepend(tmp_path)
    with Trackers(config, ("wandb",), step=0) as sent:
        sent.log(STEP)
    said = capsys.readouterr().err
    assert said == "wandb: not installed, the training continues without it (pip install wandb)\n"
    found = [one for one in preflight.check(config) if one.about == "report_to"]
    assert [one.state for one in found] == ["warn", "warn"]
    assert "pip install wandb" in found[0].said


@pytest.mark.torch
def test_tensorboard_replaces_repeated_steps(config: Config, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, last in ((1, 6), (4, 8)):  # resumed from a checkpoint at step 3
        with Trackers(config, ("tensorboard",), step=first - 1) as sent:
            for step in range(first, last):
                sent.log(STEP | {"step": step, "loss": first + step / 10})
            sent.log(EVAL | {"step": last - 1})
    found = EventAccumulator(str(tmp_path / "output" / "tensorboard"))
    found.Reload()
    losses = {event.step: round(event.value, 2) for event in found.Scalars("train/loss")}
    assert losses == {1: 1.1, 2: 1.2, 3: 1.3, 4: 4.4, 5: 4.5, 6: 4.6, 7: 4.7}
    assert [event.step for event in found.Scalars("eval/loss")] == [7]
    assert {"train/learning_rate", "train/grad_norm", "eval/runtime"} <= set(
        found.Tags()["scalars"]
    )
