"""What `launch` takes: from flags, else from the environment; the job's command to the letter."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import pytest

from clusterctl.api.flags import launch_options
from clusterctl.cli.runs.launch import refusals
from clusterctl.cli.shared import launch_options as module
from clusterctl.cli.shared.env_file import read_env_file
from clusterctl.cli.shared.main import main, split_command
from clusterctl.cli.shared.parser import build_parser
from clusterctl.errors import (
    ClusterError,
    CouldNotTell,
    Interrupted,
    InventoryError,
    LaunchRefused,
    UsageError,
)
from clusterctl.report.launch import JsonDisplay
from clusterctl.verbs.launch.options import LaunchOptions


def options(*words: str, command: tuple[str, ...] = ()) -> LaunchOptions:
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    return launch_options(
        command, module.launch_flags(parser.parse_args(list(words)), lambda: None)
    )


def test_flags_win_over_the_environment_and_each_says_where_it_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLUSTERCTL_GPUS", "4")
    monkeypatch.setenv("CLUSTERCTL_MASTER_PORT", "1234")
    plan = options("--gpus", "2").overrides
    assert (plan.gpus, plan.origin("gpus")) == (2, "--gpus")
    assert (plan.master_port, plan.origin("master_port")) == (1234, "CLUSTERCTL_MASTER_PORT")
    assert plan.launcher is None


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_GPUS", "many")
    with pytest.raises(UsageError, match="CLUSTERCTL_GPUS"):
        options()


def test_a_workdir_is_an_absolute_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options("--workdir", "/data//second/./run/").overrides.workdir == "/data/second/run"
    absolute = "an absolute path on the nodes"
    for bad, wanted in {
        "second": absolute,
        "/data/../etc": absolute,
        "/": "a folder of the job's own",
        "~/x": "a path on the nodes without ~",
    }.items():
        monkeypatch.setenv("CLUSTERCTL_WORKDIR", bad)
        with pytest.raises(UsageError, match=f"CLUSTERCTL_WORKDIR: expected {wanted}"):
            options()


def test_launcher_arguments_are_words_of_the_shell_and_begin_with_dashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLUSTERCTL_LAUNCHER_ARGS", "--tee 3 --log-dir 'a b'")
    plan = options().overrides
    assert plan.launcher_args == ("--tee", "3", "--log-dir", "a b")
    assert plan.origin("launcher_args") == "CLUSTERCTL_LAUNCHER_ARGS"
    given = options("--launcher-args=--tee 1", "--launcher-args=--log-dir=x").overrides
    assert given.launcher_args == ("--tee", "1", "--log-dir=x")
    assert options("--launcher-args=").overrides.launcher_args == ()
    words = ["launch", "--launcher-args", "--rdzv-backend=c10d", "--dry-run"]
    args = build_parser(["launch"]).parse_args(words)
    assert (args.launcher_args, args.dry_run) == (["--rdzv-backend=c10d"], True)
    monkeypatch.setenv("CLUSTERCTL_LAUNCHER_ARGS", "'open")
    with pytest.raises(UsageError, match="CLUSTERCTL_LAUNCHER_ARGS"):
        options()


def test_values_may_hold_anything() -> None:
    plan = options("--env", "A=b=c d", "--env", "E=").overrides
    assert plan.env == (("A", "b=c d"), ("E", ""))


@pytest.mark.parametrize(
    "words", [("--env", "=b"), ("--name", "a b"), ("--env", "A B"), ("--env-file", "/none")]
)
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


@pytest.mark.parametrize(
    ("error", "code", "by"),
    [
        (ClusterError("rsync is not installed", hint="install it"), 125, "controller"),
        (CouldNotTell("a: unreachable"), 125, "controller"),
        (LaunchRefused("busy", by="busy"), 125, "busy"),
        (Interrupted("interrupted"), 130, "stop"),
        (InventoryError(("h:1: a",)), 2, "usage"),
    ],
)
def test_a_launch_that_is_refused_never_ends_like_a_job(
    error: ClusterError, code: int, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = LaunchRefused if by == "controller" else type(error)
    with pytest.raises(kind) as caught, refusals(JsonDisplay()):
        raise error
    assert (str(caught.value), caught.value.hint) == (str(error), error.hint)
    told = json.loads(capsys.readouterr().out)
    assert caught.value.exit_code == told["exit_code"] == code
    assert (told["kind"], told["ended_by"]) == ("ended", by)


def test_a_run_without_a_record_here_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path))
    assert main(["resume", "lab-1", "--checkpoint", "latest", "--json"]) == 125
    out, err = capsys.readouterr()
    assert "run lab-1 has no record on this machine" in err
    assert json.loads(out)["ended_by"] == "controller"


def test_launcher_arguments_may_be_given_several_times_with_a_space() -> None:
    words = ["launch", "--launcher-args", "--tee 1", "--gpus", "2", "--launcher-args", "--x=y"]
    args = build_parser(["launch"]).parse_args(words)
    assert (args.launcher_args, args.gpus) == (["--tee", "1", "--x=y"], 2)


@pytest.mark.parametrize("flag", ["--dry-run", "--nodes=2", "--launcher-args"])
def test_launcher_arguments_do_not_swallow_a_flag(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "--launcher-args", flag, "--gpus", "2", "--", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "error: clusterctl launch: --launcher-args: expected the launcher's arguments,"
        f" found {flag}, a flag of clusterctl launch\n"
        "hint: if it is the launcher's:"
        f" clusterctl launch --launcher-args={flag} --gpus 2 -- train.py\n"
    )


def test_variables_without_a_value_and_those_of_a_file_are_never_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KEY", "TOKEN", "EMPTY"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / ".env"
    file.write_text("# mine\n\nexport KEY='a b'  # quoted\nTOKEN=x=y#z\nEMPTY=\n")
    plan = options("--env", "A=1", "--env", "HF_TOKEN", "--env-file", str(file)).overrides
    assert plan.env == (("A", "1"),)
    assert plan.env_from == ("KEY", "TOKEN", "EMPTY", "HF_TOKEN")
    assert [os.environ[name] for name in ("KEY", "TOKEN", "EMPTY")] == ["a b", "x=y#z", ""]


@pytest.mark.parametrize(
    "line", ["KEY", "KEY=s3cret word", "KEY='s3cret", "1KEY=s3cret", "=s3cret"]
)
def test_a_line_that_is_no_variable_is_named_without_its_text(tmp_path: Path, line: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"A=1\n{line}\n")
    with pytest.raises(UsageError, match=r"\.env: line 2: expected NAME=VALUE") as caught:
        read_env_file(file)
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


ENV_FILE = r"""
A='a $b `c` \n "d"'   # comment
B="pa\$s \"q\" \`x\` \\ \n 5$ 'e'"
C=a\$b\ c#d
E="two
lines"
"""


def test_a_file_of_variables_is_read_as_a_shell_reads_it(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(ENV_FILE)
    words = ["bash", "-c", 'set -a; . "$1"; exec env -0', "bash", str(file)]
    ran = subprocess.run(words, env={}, capture_output=True, text=True, check=True)
    by_shell = dict(one.partition("=")[::2] for one in ran.stdout.rstrip("\0").split("\0"))
    found = dict(read_env_file(file))
    assert set(found) == set("ABCE")
    assert found == {name: by_shell[name] for name in found}
    # A shell would take `&` for more than a character.
    file.write_text("export D=http://h/?x=1&y=2'x y'\"z\"\n")
    assert read_env_file(file) == [("D", "http://h/?x=1&y=2x yz")]


@pytest.mark.parametrize("value", ["$HOME", '"a ${B}"', "a`b`", '"$(id)"'])
def test_a_value_that_a_shell_would_replace_is_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"\ufeffA=1\n\nB={value}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 3: expected a value as it is") as caught:
        read_env_file(file)
    assert "HOME" not in str(caught.value)
    file.write_text("\ufeffA=1\n", encoding="utf-8")
    assert read_env_file(file) == [("A", "1")]


def test_a_text_from_python_is_read_as_the_flag_reads_it() -> None:
    found = launch_options([], {"max_time": "5m", "gpus": "2", "hang_after": "0"}).overrides  # type: ignore[typeddict-item]
    assert (found.max_time, found.gpus, found.hang_after) == (300.0, 2, 0.0)
    with pytest.raises(UsageError, match=r"max_time: expected a time such as 90m.*, found 'soon'"):
        launch_options([], {"max_time": "soon"})  # type: ignore[typeddict-item]
    with pytest.raises(UsageError, match="restarts: expected"):
        launch_options([], {"restarts": "many"})  # type: ignore[typeddict-item]
