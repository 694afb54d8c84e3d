"""Sends a run's metrics to TensorBoard, Weights & Biases and MLflow; a step never waits for one."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from train.config.config import Config
from train.errors import counted, without_credentials
from train.files import write_text

WAITING = 10_000
"""Records that wait for a slow tracker; what comes after them is dropped and counted."""
FLUSH_SECONDS = 30.0
"""Time that a tracker has to send the rest after the last step."""
FLUSH_SECONDS_AFTER_FAILURE = 5.0
"""The same when the training fails: other ranks wait for the reason."""
RUNS = "trackers.json"
"""The file in output_dir that names the run of each tracker, so that a resume continues it."""
TRAINER_NAMES = {"lr": "learning_rate", "tok_s": "tokens_per_second", "eval_s": "eval_runtime"}
"""Names in metrics.jsonl that transformers' Trainer names otherwise."""
NO_CURVE = frozenset({"step", "time", "total", "window", "resumed_from", "places"})
"""Numbers of a record that no chart needs."""
SECRET = re.compile(
    r"token(?!i[sz])|secret|passw(?:or)?d|passphrase|credential|auth(?!or)"
    r"|(?:api|access|private)[_-]?key",
    re.IGNORECASE,
)


Record = Mapping[str, Any]
"""Of metrics.jsonl: what is known of one step or evaluation."""


def values(record: Record) -> dict[str, float]:
    """Return a record's numbers by the Trainer's names: `loss`, `learning_rate`, `eval_loss`."""
    left_out = NO_CURVE | ({"eval_s"} if record["kind"] == "step" else set())
    return {
        TRAINER_NAMES.get(name, name): float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and name not in left_out
    }


def by_panel(record: Record) -> dict[str, float]:
    """Return its numbers as the Trainer groups them: `train/loss`, `eval/loss`."""
    return {
        f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}": value
        for name, value in values(record).items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a tracker must know of a run to open it."""

    output: Path
    config: Mapping[str, Any]
    """The keys of the training, without secrets."""
    project: str | None
    run_name: str | None
    run_id: str | None
    """The tracker's own ID of the run that is resumed."""
    step: int
    """The last step that is done."""


class Tracker(ABC):
    """An open run of one tracker, made from a `Run`."""

    name: str
    """Where the run is shown, for the user."""
    run_id: str | None = None

    @abstractmethod
    def log(self, records: Sequence[Record]) -> None:
        """Send records."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """Send what is left, and end the run."""


# ruff: noqa: D102  (each package is optional and slow; the methods are Tracker's)
class TensorBoard(Tracker):
    """Event files in `output_dir/tensorboard`."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.name = str(run.output / "tensorboard")
        # Steps that are repeated after a resume replace those of the files before.
        self._writer = SummaryWriter(self.name, purge_step=run.step + 1 if run.step else 0)
        self._writer.add_text("args", json.dumps(run.config, indent=2))

    def log(self, records: Sequence[Record]) -> None:
        for record in records:
            for name, value in by_panel(record).items():
                self._writer.add_scalar(name, value, record["step"], walltime=record["time"])
        self._writer.flush()

    def close(self, *, failed: bool) -> None:  # noqa: ARG002  (event files have no such mark)
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases; key, mode and server come from the WANDB_ variables."""

    def __init__(self, run: Run) -> None:
        # Neither a prompt for a key nor its hook at exit may wait for long.
        os.environ.setdefault("WANDB_LOGIN_TIMEOUT", "5")
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", str(FLUSH_SECONDS))
        import wandb

        self._run = wandb.init(
            project=run.project,
            name=run.run_name,
            id=run.run_id,
            resume="allow" if run.run_id else None,
            dir=run.output,
            config=dict(run.config),
            # It would wrap the training's own stdout otherwise.
            settings=wandb.Settings(console="off"),
        )
        # As the Trainer does: W&B refuses a step of its own that goes back after a resume.
        self._run.define_metric("train/global_step")
        self._run.define_metric("*", step_metric="train/global_step", step_sync=True)
        self.run_id = self._run.id
        self.name = f"run {self.run_id}"

    def log(self, records: Sequence[Record]) -> None:
        for record in records:
            self._run.log({**by_panel(record), "train/global_step": record["step"]})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class MLflow(Tracker):
    """A run of MLflow; the server comes from MLFLOW_TRACKING_URI."""

    LIMITS: Mapping[str, int] = {"params": 100, "metrics": 1000}
    """The most that its API takes in one call."""

    def __init__(self, run: Run) -> None:
        from mlflow import MlflowClient

        # Not mlflow.start_run: that sends at exit too, and tries for minutes.
        self._client = MlflowClient()
        self.run_id = run.run_id or self._new(run)
        self._client.update_run(self.run_id, status="RUNNING")
        self.name = f"run {self.run_id} at {self._client.tracking_uri}"

    def _new(self, run: Run) -> str:
        from mlflow.entities import Param

        project = run.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        known = self._client.get_experiment_by_name(project)
        experiment = known.experiment_id if known else self._client.create_experiment(project)
        run_id: str = self._client.create_run(experiment, run_name=run.run_name).info.run_id
        parameters = [Param(name, str(value)[:500]) for name, value in run.config.items()]
        self._send(run_id, "params", parameters)
        return run_id

    def _send(self, run_id: str | None, kind: str, items: list[Any]) -> None:
        most = self.LIMITS[kind]
        for first in range(0, len(items), most):
            self._client.log_batch(run_id, **{kind: items[first : first + most]})

    def log(self, records: Sequence[Record]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(record["time"] * 1000), record["step"])
            for record in records
            for name, value in values(record).items()  # (the Trainer too gives MLflow no panels)
        ]
        self._send(self.run_id, "metrics", metrics)

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


OPEN: Mapping[str, Callable[[Run], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def missing(names: Sequence[str]) -> tuple[str, ...]:
    """Return the trackers whose package is not installed; a folder `wandb` is none."""
    specs = {name: importlib.util.find_spec(name) for name in names}
    return tuple(name for name, spec in specs.items() if spec is None or spec.origin is None)


def without_secrets(value: Any) -> Any:
    """Return a value without passwords in addresses, and without what is named as a secret."""
    if isinstance(value, dict):
        return {
            name: "(secret)" if SECRET.search(str(name)) else without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return without_credentials(value) if isinstance(value, str) else value


class Feed:
    """One tracker, in a thread of its own: it may be slow or hang, and the training does not."""

    def __init__(self, name: str, run: Run, opened: Callable[[str, str], None]) -> None:
        """Open the tracker's run in the thread; `opened` gets the tracker's name and run ID."""
        self._name, self._run, self._opened = name, run, opened
        self._queue: SimpleQueue[Record | None] = SimpleQueue()  # None ends it
        self._failed = self._complained = False
        self._given = self._sent = self._dropped = 0
        self._thread = threading.Thread(target=self._work, name=f"report-{name}", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Add a record, or drop it if too many wait or the tracker could not start."""
        if not self._thread.is_alive():
            return
        self._given += 1
        if self._queue.qsize() < WAITING:
            self._queue.put(record)
        else:
            self._dropped += 1

    def end(self, *, failed: bool) -> None:
        """Let the thread send the rest and end the run."""
        self._failed = failed
        self._queue.put(None)

    def wait(self, until: float) -> None:
        """Wait for the thread to end, until a time of the monotonic clock."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            left = self._given - self._sent
            _note(f"{self._name}: did not finish in time, up to {counted(left, 'record')} not sent")
        elif self._dropped:
            _note(f"{self._name}: too slow, {counted(self._dropped, 'record')} not sent")

    def _work(self) -> None:
        try:
            tracker = OPEN[self._name](self._run)
        except Exception as error:  # noqa: BLE001  (a tracker's fault is no fault of the training)
            _note(f"{self._name}: cannot start, the training continues without it: {_words(error)}")
            return
        _note(f"{self._name}: {tracker.name}")
        if tracker.run_id:
            self._opened(self._name, tracker.run_id)
        ended = False
        while not ended:
            taken = [self._queue.get(), *(self._queue.get() for _ in range(self._queue.qsize()))]
            ended, records = None in taken, [record for record in taken if record]
            if records:
                self._try(tracker.log, records)
            self._sent += len(records)
        self._try(partial(tracker.close, failed=self._failed))

    def _try(self, send: Callable[..., None], *what: object) -> None:
        """Send something; the first failure is reported, and later records are still tried."""
        try:
            send(*what)
        except Exception as error:  # noqa: BLE001  (as above)
            if not self._complained:
                _note(f"{self._name}: cannot send, the training continues: {_words(error)}")
            self._complained = True


class Trackers:
    """All trackers of a run, on rank 0; leaving the context flushes them, with a time limit."""

    def __init__(self, config: Config, names: Sequence[str], *, step: int) -> None:
        """Start the trackers that are installed, and name the others.

        Other ranks than 0 have none. `step` is the last one that is done; 0 begins new runs.
        """
        self._file = Path(config.output_dir) / RUNS
        self._lock = threading.Lock()
        self._ids: dict[str, str] = self._known() if step else {}
        absent = missing(names)
        for name in absent:
            _note(f"{name}: not installed, the training continues without it (pip install {name})")
        run = Run(
            output=Path(config.output_dir).absolute(),
            config=without_secrets(config.to_dict()),
            project=config.project,
            run_name=config.run_name,
            run_id=None,
            step=step,
        )
        self._feeds = [
            Feed(name, replace(run, run_id=self._ids.get(name)), self._opened)
            for name in dict.fromkeys(names)
            if name not in absent
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        limit = FLUSH_SECONDS_AFTER_FAILURE if kind else FLUSH_SECONDS
        until = time.monotonic() + limit
        for feed in self._feeds:
            feed.end(failed=kind is not None)
        for feed in self._feeds:
            feed.wait(until)

    def log(self, record: Record) -> None:
        """Hand a record to all trackers; it returns at once."""
        for feed in self._feeds:
            feed.put(record)

    def _known(self) -> dict[str, str]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _opened(self, name: str, run_id: str) -> None:
        """Write down the run of a tracker."""
        with self._lock, contextlib.suppress(OSError):
            self._ids[name] = run_id
            write_text(self._file, json.dumps(self._ids) + "\n")


def _words(error: Exception) -> str:
    """Return an error's first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else repr(error)


def _note(text: str) -> None:
    print(without_credentials(text), file=sys.stderr, flush=True)
