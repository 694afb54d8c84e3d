"""`{run}` and `{name}` are filled in, and no other brace is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Job
from clusterctl.plan.options import Options
from clusterctl.plan.run_names import (
    before_names,
    escape,
    fill_job,
    fill_text,
    pattern_of_runs,
    require_name,
)
from tests.plan.conftest import Planner


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("ckpt/{run}", "ckpt/lab-1"),
        ("--out={name}/{run}.d", "--out=base/lab-1.d"),
        ("{{run}} {{name}}", "{run} {name}"),
        ("{{{run}}}", "{{run}}"),
        ('{"run": {"name": 1}, "x": {}}', '{"run": {"name": 1}, "x": {}}'),
        ("awk '{print $1}' {a,b}", "awk '{print $1}' {a,b}"),
        ("{run:x} { run } {Run}", "{run:x} { run } {Run}"),
        ("echo ${run} ${name:-x}", "echo ${run} ${name:-x}"),
        ("{checkpoint}", "{checkpoint}"),
    ],
)  # fmt: skip
def test_only_the_two_names_are_filled_in(text: str, filled: str) -> None:
    assert fill_text(text, "lab-1", "base") == filled


@given(st.text(alphabet="{}$runame ", max_size=20))
def test_what_is_escaped_comes_back_as_it_was(text: str) -> None:
    assert fill_text(escape(text), "lab-1", "base") == text


def test_a_plan_has_the_runs_own_folder_in_command_and_variables(plan: Planner) -> None:
    job = Job(
        command=("train.py", "--out", "ckpt/{run}", "{{run}}"),
        env=(("OUT", "/data/{run}"),),
        checkpoints="ckpt/{run}",
    )
    made = plan(job=job, options=Options(env=(("LOG", "{run}.log"),)))
    assert made.master.argv[1:] == ("train.py", "--out", "ckpt/lab-1", "{run}")
    values = {variable.name: variable.value for variable in made.master.env}
    assert (values["OUT"], values["LOG"]) == ("/data/lab-1", "lab-1.log")
    assert made.checkpoints == "ckpt/lab-1"


def test_a_name_must_be_there_for_its_place() -> None:
    job = Job(command=("train.py",), checkpoints="ckpt/{name}")
    require_name(job, "base")
    assert fill_job(job, "lab-1", "base").checkpoints == "ckpt/base"
    with pytest.raises(UsageError, match=r"job\.checkpoints: expected the run's name"):
        require_name(job, "")
    require_name(Job(command=("echo", "{{name}}", "${name}")), "")


def test_the_folder_of_all_runs_is_the_one_before_the_name() -> None:
    assert before_names("/data/ckpt/{run}/a") == "/data/ckpt"
    assert before_names("ckpt/x-{name}") == "ckpt"
    assert before_names("{run}") == ""
    assert before_names("out/{x}") == "out/{x}"


def test_folders_of_runs_are_told_from_others_by_the_text_before_the_name() -> None:
    own = pattern_of_runs("out.{run}-{name}x")
    assert own.fullmatch("out.lab-1-basex")
    assert not own.fullmatch("out.lab-1-base")
    assert not own.fullmatch("outs")
    with pytest.raises(UsageError) as caught:
        pattern_of_runs("{run}-out")
    assert "`checkpoints: ckpt/{run}-out`" in (caught.value.hint or "")
