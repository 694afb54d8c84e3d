"""Hints are whole commands: what was typed, with one thing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.cli.shared.hint_commands import (
    as_typed,
    complete_hint,
    with_run,
    with_word,
    without_flag,
)
from clusterctl.verbs.batch.submit import plan_submission
from clusterctl.verbs.runs.records import Records
from tests.verbs.batch.test_submit import CLUSTER, WORDS


@pytest.mark.parametrize(
    ("hint", "typed", "told"),
    [
        ("--nodes 3", "check --nodes 7 -v", "clusterctl check --nodes 3 -v"),
        ("--nodes 3", "check --nodes=7 -v", "clusterctl check --nodes 3 -v"),
        ("--nodes 3", "launch -- a.py --nodes 7", "clusterctl launch --nodes 3 -- a.py --nodes 7"),
        ("--node a", "logs --nodes b", "clusterctl logs --nodes a"),
        ("-i b.yaml", "runs --inventory a.yaml", "clusterctl runs --inventory b.yaml"),
        ("launch anyway: --force", "launch -- a", "launch anyway: clusterctl launch --force -- a"),
        ("--force", "init --force a", "clusterctl init --force a"),
        ("--name 'a b'", "launch --name x", "clusterctl launch --name 'a b'"),
        ("--name 'a", "launch", "--name 'a"),
        ("--identity 'a;b'", "init h", "clusterctl init h --identity 'a;b'"),
        ("now: -- a.py '{b}'", "resume -v -- a.py", "now: clusterctl resume -v -- a.py '{b}'"),
        ("-- a.py", "resume", "clusterctl resume -- a.py"),
        ("clusterctl runs", "stop foo", "clusterctl runs"),
        (
            "once: write it; then: clusterctl launch --launcher direct -- sh a",
            "launch --nodes 2 --launcher ray --detach -- sh a",
            "once: write it; then: clusterctl launch --nodes 2 --detach --launcher direct -- sh a",
        ),
        (
            "clusterctl launch '--launcher-args=--a b' --nodes 2 --env B=2 --env A=1 -- a.py",
            "launch --nodes=3 --env A=1 -- torchrun --nnodes 2 a.py",
            "clusterctl launch '--launcher-args=--a b' --nodes 2 --env B=2 --env A=1 -- a.py",
        ),
        ("clusterctl launch -- a.py", "launch --gpus 4", "clusterctl launch --gpus 4 -- a.py"),
        ("`clusterctl launch -- …` starts it", "launch -v", "`clusterctl launch -- …` starts it"),
        ("clusterctl launch -- a.py", "resume --nodes 2", "clusterctl launch -- a.py"),
        ("--force overwrites it", "init", "--force overwrites it"),
    ],
)
def test_a_hint_that_is_a_flag_becomes_the_command(hint: str, typed: str, told: str) -> None:
    assert complete_hint(hint, typed.split()) == told


def test_a_launchers_options_are_the_hints() -> None:
    typed = ["launch", "-v", "--launcher-args", "--tee 3", "--nodes", "2", "--", "torchrun", "a.py"]
    told = complete_hint("clusterctl launch --gpus 1 -- a.py", typed)
    assert told == "clusterctl launch -v --nodes 2 --gpus 1 -- a.py"


def test_a_word_is_replaced_where_it_stands() -> None:
    assert with_word(["--nods", "2"], "--nods", "--nodes") == ["--nodes", "2"]
    assert with_word(["-v", "--nods=2"], "--nods", "--nodes") == ["-v", "--nodes=2"]
    assert with_word(["-v"], "--nods", "--nodes") == ["-v"]


def test_the_words_of_a_batch_job_are_what_was_typed() -> None:
    planned = plan_submission(CLUSTER, WORDS, Records(Path("/tmp")), nodes=None)
    words = planned.argv[planned.argv.index("clusterctl") + 1 :]
    assert as_typed(list(words)) == WORDS
    assert as_typed(WORDS) == WORDS


def test_a_resume_names_its_run_also_where_none_was_typed() -> None:
    words = ["resume", "--checkpoint", "latest", "--", "a.py"]
    assert with_run(words, None, "lab-1") == [*words[:3], "lab-1", *words[3:]]
    assert with_run(["resume", "mine", "-v"], "mine", "lab-1") == ["resume", "lab-1", "-v"]


@pytest.mark.parametrize("flag", ["--exclude a", "--exclude=a"])
def test_a_flag_is_left_out_with_its_value(flag: str) -> None:
    words = f"launch {flag} -v -- x.py --exclude b".split()
    assert without_flag(words, "--exclude") == ["launch", "-v", "--", "x.py", "--exclude", "b"]
