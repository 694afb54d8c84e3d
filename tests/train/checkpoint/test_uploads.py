"""Checkpoints that a training uploads to a real store, and resumes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.store import SECRET, Store
from tests.train.world import World
from tests.waiting import wait_until

pytest.importorskip("moto", reason="moto is not installed: make setup")
pytest.importorskip("s3fs", reason="s3fs is not installed: make setup")
STEADY: dict[str, Any] = {
    "lr_scheduler_type": "constant", "warmup_steps": 0, "seq_len": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """Return a server of S3."""
    store = Store.start()
    yield store
    store.close()


@pytest.fixture(autouse=True)
def variables(world: World, store: Store) -> None:
    """Let trainings find the store, as `env_from` does."""
    world.variables = store.variables


def test_a_training_is_uploaded_and_resumed_on_another_machine(world: World, store: Store) -> None:
    whole = world.run(**STEADY, max_steps=3)
    first = world.run(**STEADY, max_steps=2, upload_to="s3://runs/whole")
    assert store.ask("GET", "/whole/latest") == b"step-000002\n"
    files = {path.name for path in (first.output / "step-000002").iterdir()}
    assert store.keys("whole/step-000002/") == files, "all of it, and no probe"
    assert first.status()["state"] == "done"
    assert first.status()["upload"]["state"] == "done"
    lines = (first.output / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(one["step"], one["ok"]) for one in records if one["kind"] == "upload"] == [(2, True)]

    store.ask("PUT", "/data/train.jsonl", Path(str(world.base.dataset_path)).read_bytes())
    again = world.run(
        **STEADY,
        max_steps=3,
        dataset_path="s3://runs/data/train.jsonl",
        resume_from_checkpoint="s3://runs/whole/latest",
    )
    assert again.losses() == {3: whole.losses()[3]}
    assert "downloading s3://runs/data/train.jsonl (1 file, " in again.said()

    name = "/whole/step-000002/__0_0.distcp"
    changed = bytearray(store.ask("GET", name))
    changed[len(changed) // 2] ^= 1
    store.ask("PUT", name, bytes(changed))
    damaged = world.start(
        **STEADY, max_steps=3, resume_from_checkpoint="s3://runs/whole/step-000002"
    )
    assert damaged.wait() == [4]
    assert "s3://runs/whole/step-000002: __0_0.distcp: expected" in damaged.said()
    assert "Traceback" not in damaged.said()
    assert not any(SECRET in run.said() for run in world.started)


@pytest.mark.soak  # (test_remote.py shows each rule) a store that answers nothing for a while
def test_a_training_killed_amid_its_upload_uploads_after_its_restart(
    world: World, store: Store
) -> None:
    how: dict[str, Any] = STEADY | {"upload_to": "s3://runs/killed", "save_steps": 1}
    first = world.start(**how, max_steps=60)
    first.wait_for("upload of step-000001: uploaded")
    store.pause()
    try:
        first.wait_for("Step 30/60")  # no step waits for the store
    finally:
        first.kill()
        store.pause(over=True)
    store.ask("DELETE", "/killed/step-000001/COMPLETE")
    wait_until(lambda: "latest" in store.keys("killed/"))
    again = world.run(
        **how | {"save_steps": 1000}, max_steps=60, output_dir=str(first.output),
        resume_from_checkpoint="latest",
    )  # fmt: skip
    assert again.losses()[60] > 0
    last = store.ask("GET", "/killed/latest")
    assert last == b"step-000060\n"
    assert "COMPLETE" in store.keys("killed/step-000060/")


@pytest.mark.soak
def test_the_end_of_a_training_waits_for_its_upload_and_says_so(world: World, store: Store) -> None:
    how: dict[str, Any] = STEADY | {"max_steps": 1, "upload_timeout": 3}
    store.pause()
    try:
        training = world.start(**how, upload_to="s3://runs/late", before=probes_nothing)
        assert training.wait() == [0]
    finally:
        store.pause(over=True)
    assert "upload of step-000001: waiting up to 3 s for its end" in training.said()
    assert "not done within 3 s" in training.said()
    assert "hint: python -m train.tools.upload" in training.said()
    assert training.status()["state"] == "done"
    assert training.status()["upload"]["state"] == "failed"


def probes_nothing(_rank: int) -> None:
    """Skip the start's own probe, which waits for a store that does not answer."""
    from train.checkpoint import remote

    remote.probe = lambda *_: None
