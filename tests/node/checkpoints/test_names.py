"""What a name marks as a step, an epoch or a date, and which names are of no use."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.checkpoints.names import NameParts, is_retired, is_unfinished, read_name

STEPS = st.integers(min_value=0, max_value=10**9)
WORDS = st.sampled_from(["step", "Step", "global_step", "iter", "steps", "checkpoint", "ckpt"])
JOINTS = st.sampled_from(["", "-", "_", "="])
LOSS = st.floats(min_value=0.01, max_value=99.0).map(lambda loss: f"loss{loss:.2f}")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-000120", 120),
        ("step60.pt", 60),
        ("step_90_loss0.31.pt", 90),
        ("step=100-v1.ckpt", 100),
        ("epoch=3-step=1200.ckpt", 1200),
        ("checkpoint-100", 100),
        ("checkpoint_0001000.pt", 1000),
        ("global_step40", 40),
        ("iter_0000100", 100),
        ("0001000.pt", 1000),
        ("step_50k", 50_000),
        ("step-000120.tmp-a1b2", 120),
        ("step_20250102.pt", 20250102),
        ("optim_000100_rank0.pt", 100),
        ("model_0001999.pth", 1999),
        ("net_G_00100.pth", 100),
        ("model-00001-of-00002.safetensors", None),
        ("model_epoch_3_00100.pt", None),
        ("vit_base_patch16_224.pth", None),
        ("model.pt", None),
        ("best_loss0.25.pt", None),
        ("epoch_3.pt", None),
        ("resnet50.pt", None),
        ("footstep3.pt", None),
        ("step_0.5.pt", None),
    ],
)
def test_a_step_is_what_is_marked_as_one(name: str, step: int | None) -> None:
    assert read_name(name).step == step


@pytest.mark.parametrize(
    ("name", "date"),
    [
        ("2024-12-31", 20241231000000),
        ("ckpt-2025-01-02.pt", 20250102000000),
        ("checkpoint-20241231", 20241231000000),
        ("run_20250102_131415.pt", 20250102131415),
        ("2025-01-02T13-14", 20250102131400),
        ("2025-13-40.pt", None),
        ("1234567890.pt", None),
        ("1796014576692", 20261130045616),
        ("1796014576.pt", 20261130045616),
    ],
)
def test_a_date_is_a_date_and_no_step(name: str, date: int | None) -> None:
    told = read_name(name)
    assert told.date == date
    if date:
        assert told.step is None


def test_an_epoch_is_told_beside_a_step() -> None:
    assert read_name("epoch=3-step=1200.ckpt") == NameParts(step=1200, epoch=3)
    assert read_name("model_ep7.pth") == NameParts(epoch=7)


@given(word=WORDS, joint=JOINTS, step=st.integers(0, 10**6), loss=LOSS, zeros=st.integers(0, 5))
def test_a_marked_step_is_read_whatever_else_is_in_the_name(
    word: str, joint: str, step: int, loss: str, zeros: int
) -> None:
    for name in (
        f"{word}{joint}{'0' * zeros}{step}",
        f"{word}{joint}{step}_{loss}.pt",
        f"{loss}_{word}{joint}{step}.pt",
        f"my-run_{word}{joint}{step}-v1.ckpt",
    ):
        assert read_name(name).step == step, name


@given(day=st.dates(dt.date(1990, 1, 1), dt.date(2099, 12, 31)), joint=JOINTS)
def test_dates_in_names_are_ordered_as_days_are(day: dt.date, joint: str) -> None:
    if joint == "=":
        return
    later = day + dt.timedelta(days=1)
    first, second = (
        read_name(f"run_{joint.join((f'{d:%Y}', f'{d:%m}', f'{d:%d}'))}.pt").date or 0
        for d in (day, later)
    )
    assert 0 < first < second


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error(name: str) -> None:
    told = read_name(name)
    assert told.step is None or told.step >= 0
    is_retired(name)
    is_unfinished(name)


@given(step=STEPS)
def test_what_is_put_aside_is_not_taken(step: int) -> None:
    name = f"step-{step:06d}"
    for end in (".aside-900f8aa6", ".bak", ".bak2", ".old", "~", "_backup", ".aside-1.bak"):
        assert is_retired(name + end), end
    assert not is_retired(name)
    assert not is_retired(name + ".pt")
    assert is_unfinished(name + ".tmp-a1b2")
    assert is_unfinished("tmp-checkpoint-5")


@pytest.mark.parametrize("name", ["model.tmpl-5", "golden-3.pt", "step_5_holder.pt", "asides-5"])
def test_a_word_that_only_looks_so_puts_nothing_aside(name: str) -> None:
    assert not is_retired(name)
    assert not is_unfinished(name)
