"""What `launch` takes: from flags, else from the environment; the job's command to the letter."""

from __future__ import annotations

import argparse

import pytest

from clusterctl.cli import launch_options as module
from clusterctl.cli.main import main, split_command
from clusterctl.errors import UsageError
from clusterctl.verbs.launch import LaunchOptions


def options(*words: str, command: tuple[str, ...] = ()) -> LaunchOptions:
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    return module.launch_options(
        parser.parse_args(list(words), argparse.Namespace(command=list(command)))
    )


def test_flags_win_over_the_environment_and_each_says_where_it_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLUSTERCTL_GPUS", "4")
    monkeypatch.setenv("CLUSTERCTL_MASTER_PORT", "1234")
    plan = options("--gpus", "2").plan
    assert (plan.gpus, plan.origin("gpus")) == (2, "--gpus")
    assert (plan.master_port, plan.origin("master_port")) == (1234, "CLUSTERCTL_MASTER_PORT")
    assert plan.launcher is None


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_GPUS", "many")
    with pytest.raises(UsageError, match="CLUSTERCTL_GPUS"):
        options()


def test_values_may_hold_anything() -> None:
    plan = options("--env", "A=b=c d", "--env", "E=").plan
    assert plan.env == (("A", "b=c d"), ("E", ""))


@pytest.mark.parametrize("words", [("--env", "A"), ("--env", "=b"), ("--name", "a b")])
def test_what_cannot_be_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=words[0]):
        options(*words)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("gpus", "-1"),
        ("gpus", "two"),
        ("master-port", "99999"),
        ("master-port", "0"),
        ("start-timeout", "-5"),
        ("start-timeout", "0"),
        ("lost-after", "nan"),
        ("max-restarts", "-1"),
    ],
)
def test_numbers_have_bounds(
    flag: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", f"--{flag}={value}", "--", "x"]) == 2
    assert value in capsys.readouterr().err
    variable = f"CLUSTERCTL_{flag.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=variable):
        options()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["launch"], (["launch"], [])),
        (
            ["launch", "--gpus", "2", "--", "a", "--gpus"],
            (["launch", "--gpus", "2"], ["a", "--gpus"]),
        ),
        (["launch", "--", "--", "x"], (["launch"], ["--", "x"])),
        (["launch", "--", ""], (["launch"], [""])),
    ],
)
def test_the_command_is_everything_after_the_first_dashes(
    words: list[str], expected: tuple[list[str], list[str]]
) -> None:
    assert split_command(words) == expected


def test_a_launcher_that_does_not_exist_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["launch", "--launcher", "mpi", "--", "x"]) == 2
    assert "torchrun" in capsys.readouterr().err
