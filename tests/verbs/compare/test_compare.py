"""What is found to differ between runs, and what came of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.software.python import Python
from clusterctl.inventory.cluster import Job
from clusterctl.verbs.compare.comparison import compare_runs
from clusterctl.verbs.compare.differences import command_table, hidden, hide
from clusterctl.verbs.compare.story import Story
from tests.verbs.compare.stories import COMMAND, facts, story

NEWER = Python(asked="python3", version="3.11", everything="iniconfig==2.1.0 torch==2.8")


def differs(*stories: Story) -> list[tuple[str, str, tuple[str | None, ...]]]:
    return [(one.block, one.what, one.values) for one in compare_runs(stories).differences]


def test_equal_runs_do_not_differ() -> None:
    found = compare_runs([story(), story("bbbb")])
    assert found.differences == ()
    assert found.not_recorded == {"code": (found.runs[0].run, found.runs[1].run)}
    assert "versions (4 values)" in found.all_same


def test_a_flag_a_package_and_a_node_are_named_and_nothing_else() -> None:
    other = story(
        "bbbb",
        nodes=("a", "c"),
        job=Job(command=("train.py", "--lr=3e-4", "--config", "a.yaml")),
        known={name: facts(name, python=NEWER) for name in ("a", "c")},
        step_s=0.5,
        rate=0.12,
    )
    found = compare_runs([story(), other])

    assert differs(story(), other) == [
        ("command", "--lr", ("1e-4", "3e-4")),
        ("nodes", "nodes", ("a,b", "a,c")),
        ("versions", "iniconfig", ("2.0.0", "2.1.0")),
    ]
    (faster,) = found.speedups
    assert (faster.speedup, faster.measured, faster.efficiency) == (2.0, "tokens/s", None)
    assert [at.step for at in found.losses] == [5, 10, 20]
    assert found.losses[-1].losses == pytest.approx((1.0, 0.6))


def test_more_ranks_have_an_efficiency() -> None:
    found = compare_runs([story(nodes="a"), story("bbbb", nodes=("a", "b", "c", "d"), step_s=1.25)])
    (one,) = found.speedups
    assert (one.speedup, one.ranks, one.efficiency) == pytest.approx((3.2, 4.0, 0.8))


def test_secrets_are_not_shown_but_that_they_differ() -> None:
    jobs = [
        Job(command=(*COMMAND, "--api-key", key), env=(("MY_TOKEN", key), ("N", "1")),
            env_from=("HF_TOKEN",))
        for key in ("first-key", "second-key")
    ]  # fmt: skip
    found = compare_runs([story(job=jobs[0]), story("bbbb", job=jobs[1])])
    assert "first-key" not in str(found)
    assert [(one.what, one.values) for one in found.differences] == [
        ("--api-key", ("***", "***")), ("MY_TOKEN", ("***", "***")),
    ]  # fmt: skip
    assert hidden(["--password=x", "hf_abcdefabcdefabcdef", "--lr", "1"]) == (
        "--password=***", "***", "--lr", "1",
    )  # fmt: skip
    line = "export TOKEN=x; train --key=a && curl http://me:pass@proxy/"
    assert hidden(["-c", line, "--password=my own words"]) == (
        "-c", "export TOKEN=*** train --key=a && curl http://***@proxy/", "--password=***",
    )  # fmt: skip
    assert hide("job.before", "export TOKEN=x") == "export TOKEN=***"


def test_code_is_told_by_commit_and_by_what_was_not_committed() -> None:
    diff = "diff --git a/train.py b/train.py\n-1\n+2\n# new file: 'x.py'\n"
    one = story(commit="a" * 40, tree="t1")
    other = story("bbbb", commit="a" * 40, tree="t2", dirty=True, diff=diff)
    found = {what: values for _, what, values in differs(one, other)}
    assert found["uncommitted changes"][0] == "none"
    assert str(found["uncommitted changes"][1]).startswith("train.py, x.py (")
    assert found["files"] == ("t1", "t2")


def test_machines_that_disagree_are_named_with_their_values() -> None:
    def link(mtu: int, name: str) -> tuple[Interface, ...]:
        return (Interface(name=name, addresses=("10.0.0.1/24",), mtu=mtu),)

    one = story(known={n: facts(n, interfaces=link(9000, "eth0")) for n in "ab"})
    slow = {"a": facts("a", interfaces=link(9000, "eth0")),
            "b": facts("b", interfaces=link(1500, "eth0"), kernel="6.2")}  # fmt: skip
    assert differs(one, story("bbbb", known=slow)) == [
        ("versions", "kernel", ("6.1", "6.1 (a), 6.2 (b)")),
        ("versions", "MTU of the data network", ("9000", "1500 (b), 9000 (a)")),
    ]


def test_a_machine_that_was_restarted_between_is_told() -> None:
    one = story(known={name: facts(name, boot_id=f"1{name}") for name in "ab"})
    other = story("bbbb", known={"a": facts("a", boot_id="1a"), "b": facts("b", boot_id="2b")})
    assert differs(one, other) == [("nodes", "machine restarted since", ("none", "b"))]


def test_what_an_old_record_lacks_is_not_a_difference() -> None:
    old = Python(asked="python3", version="3.11")
    bare = story("bbbb", known={name: facts(name, python=old) for name in "ab"})
    assert differs(story(), bare) == []
    none = compare_runs([story(), story("cccc", known={})])
    assert none.differences == ()
    assert none.not_recorded["versions"] == (none.runs[1].run,)


def test_checks_that_did_not_pass_are_compared_by_what_they_say() -> None:
    finding = {"check": "node.swap", "status": "warn", "message": "swap is on", "nodes": ["a"]}
    assert differs(story(), story("bbbb", findings=(finding,))) == [
        ("checks", "node.swap", ("none", "warn: swap is on"))
    ]


def test_three_runs_stand_next_to_each_other_and_settings_count() -> None:
    third = replace(Job(command=COMMAND), launcher="direct", env=(("N", "2"),))
    assert differs(story(), story("bbbb"), story("cccc", job=third)) == [
        ("environment", "N", ("none", "none", "2")),
        ("settings", "job.launcher", ("torchrun", "torchrun", "direct")),
    ]


def test_runs_without_metrics_have_no_speedup() -> None:
    found = compare_runs([story(), story("bbbb", steps=0)])
    assert (found.speedups, found.losses) == ((), ())
    assert found.runs[1].tokens_per_s is None


@pytest.mark.parametrize(
    ("words", "table"),
    [
        ((), {}),
        (("-m", "train", "--x"), {"-m": "train", "--x": "given"}),
        (("t.py", "a=b", "--lr", "-0.1", "--lr", "2"), {"program": "t.py", "word 2": "a=b",
                                                       "--lr": "-0.1 2"}),
    ],
)  # fmt: skip
def test_a_command_is_compared_by_its_flags(words: tuple[str, ...], table: dict[str, str]) -> None:
    assert command_table(words) == table
