"""The frame of the command: what it imports, and how each end becomes an exit code."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import __version__
from clusterctl.cli.nodes import init
from clusterctl.cli.shared import foreign_verbs
from clusterctl.cli.shared.main import main, split_command
from clusterctl.cli.shared.parser import build_parser
from clusterctl.cli.shared.verbs import EXAMPLES, VERBS
from clusterctl.errors import ClusterError, CouldNotTell, InventoryError, LaunchRefused, UsageError
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.verbs.runs.records import Records, RunRecord


def ending(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Run a verb that ends so."""

    def run(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(init, "run", run)
    return main(["init"])


def test_an_interrupt_that_was_caught_in_exec_is_an_exit_code(tmp_path: Path) -> None:
    """CPython would end itself with SIGINT after `python -m`."""
    (tmp_path / "interrupted.py").write_text(
        "from clusterctl import __main__\n"
        "def main():\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        "        print('caught')\n"
        "    return 130\n"
        "__main__.main = main\n"
        "__main__.run()\n"
    )
    words = [sys.executable, "-m", "interrupted"]
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "caught\n"), done.stderr


def test_the_version_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"clusterctl {__version__}\n"


def test_help_imports_nothing_that_takes_long() -> None:
    """Paramiko and YAML cost more than all of `--help` may take."""
    code = (
        "import sys; from clusterctl.cli.shared.main import main; main(['--help'])\n"
        "slow = {'paramiko', 'yaml', 'shtab', 'psutil', 'rich', 'logging', 'shutil', 'typing'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_logs_imports_nothing_that_takes_long_before_it_is_needed() -> None:
    code = (
        "import sys; from clusterctl.cli.shared.parser import build_parser\n"
        "build_parser(['logs'])\n"
        "slow = {'paramiko', 'yaml', 'psutil', 'rich'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_verb_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "launch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["chekc"], "error: there is no verb 'chekc'\nhint: clusterctl check\n"),
        (["tpo", "--once"], "error: there is no verb 'tpo'\nhint: clusterctl top --once\n"),
        (["chekc", "--nodes", "2"], "hint: clusterctl check --nodes 2\n"),
        (["info"], "error: there is no verb info: status shows what a run is doing\n"),
        (["nvitop"], "hint: clusterctl top\n"),
        (["ps", "-aux"], "hint: clusterctl runs\n"),
        (["kill", "lab-1"], "hint: clusterctl stop lab-1\n"),
        (["kill", "-9", "lab-1"], "hint: clusterctl stop lab-1\n"),
        (["runz"], "hint: clusterctl runs\n"),
        (["cancel"], "hint: clusterctl stop\n"),
        (["start", "a.py", "--lr", "3"], "hint: clusterctl launch -- a.py --lr 3\n"),
        (["start", "-d", "--", "a.py"], "hint: clusterctl launch -d -- a.py\n"),
        (["tail", "-n", "5", "lab-1"], "hint: clusterctl logs -f -n 5 lab-1\n"),
        (["attach"], "hint: clusterctl logs -f\n"),
        (["compare", "a", "b"], "hint: clusterctl runs compare a b\n"),
        (["get", "out", "--from", "a"], "hint: clusterctl pull out --from a\n"),
        (["queue"], "error: there is no verb queue: launch --wait waits for free nodes"),
        (["gpus"], "hint: clusterctl exec -- nvidia-smi\n"),
        (["rm", "lr1"], "hint: clusterctl runs delete lr1\n"),
        (["clean"], "hint: clusterctl runs --prune\n"),
        (["drain", "gpu1"], "hint: clusterctl quarantine add gpu1\n"),
        (["wait", "lr1"], "hint: clusterctl logs -f lr1\n"),
        (["ssh", "gpu1"], "error: there is no verb ssh: use ssh itself, or exec for a command\n"),
        (["--verison"], "hint: clusterctl --version\n"),
        (["check", "gpu1"], "error: clusterctl check: expected no further word, found 'gpu1'"),
        (["check", "--nods=a b"], "hint: clusterctl check '--nodes=a b'\n"),
        (["logs", "--tail"], "error: -n/--tail: expected N, found none\n"),
        (["launch", "--nods", "2", "--", "a.py"], "hint: clusterctl launch --nodes 2 -- a.py\n"),
        (
            ["launch", "--nodes", "2", "a.py", "--n", "2"],
            "hint: clusterctl launch --nodes 2 -- a.py --n 2\n",
        ),
        (
            ["launch", "a.py", "--n", "2", "--nodes", "2"],
            "hint: clusterctl launch --nodes 2 -- a.py --n 2\n",
        ),
        (["exec", "hostname;ls"], "hint: clusterctl exec -- sh -c 'hostname;ls'\n"),
        (["exec", "ls | wc -l"], "hint: clusterctl exec -- sh -c 'ls | wc -l'\n"),
        (["exec", "--nodes", "a", "df", "-h"], "hint: clusterctl exec --nodes a -- df -h\n"),
        (
            ["launch", "--launcher", "rayy", "--", "a.py"],
            "hint: clusterctl launch --launcher ray --",
        ),
        (["resume"], "error: clusterctl resume: expected --checkpoint, found none\n"),
        (["resume"], "hint: clusterctl resume --checkpoint latest\n"),
        (["resume", "a", "--checkpoit", "b"], "hint: clusterctl resume a --checkpoint b\n"),
        (["forget"], "hint: clusterctl forget gpu3\n"),
        (["stop", "--all", "a"], "hint: clusterctl stop a\nhint: clusterctl stop --all\n"),
        (["launch", "--env", "=b", "--", "a"], "hint: clusterctl launch --env NAME=VALUE -- a\n"),
        (
            ["launch", "--nodes", "a", "b", "-d", "--", "t.py"],
            "hint: clusterctl launch --nodes a,b -d -- t.py\n",
        ),
        (["exec", "--nodes", "a", "b", "--", "w"], "hint: clusterctl exec --nodes a,b -- w\n"),
        (["check", "--exclude", "a", "b"], "hint: clusterctl check --exclude a,b\n"),
        (["resume", "base"], "hint: clusterctl resume base --checkpoint latest\n"),
        (
            ["launch", "--nodelist", "a", "--job-name", "x", "--", "t.py"],
            "hint: clusterctl launch --nodes a --name x -- t.py\n",
        ),
        (["runs", "--state", "failed"], "hint: clusterctl runs --help\n"),
        (["runs", "list"], "hint: clusterctl runs\n"),
        (["stop", ""], "error: RUN: expected a run's id or name, found an empty word"),
        (["resume", "", "--checkpoint", "latest"], "error: RUN: expected a run's id or name"),
        (["sandbox", "fualt", "n", "frozen"], "hint: clusterctl sandbox fault n frozen\n"),
        (["launch", "train.py", "--lr", "3"], "hint: clusterctl launch -- train.py --lr 3\n"),
        (
            ["launch", "-d", "t.py", "--nodes", "2"],
            "hint: clusterctl launch -d --nodes 2 -- t.py\n",
        ),
        (
            ["launch", "-d", "--stpes", "3", "--", "train.py"],
            "hint: clusterctl launch -d -- train.py --stpes 3\n",
        ),
        (["launch", "--detatch", "--", "a"], "hint: clusterctl launch --detach -- a\n"),
        (
            ["launch", "--procs", "2", "--", "a"],
            "hint: clusterctl launch --procs-per-node 2 -- a\n",
        ),
        (["exec", "hostname"], "hint: clusterctl exec -- hostname"),
        (["exec", "a", "b", "--", "df", "-h"], "hint: clusterctl exec --nodes a,b -- df -h"),
        (["torchrun", "--nnodes=2", "a.py"], "hint: clusterctl launch -- torchrun --nnodes=2 a.py"),
        (["tune", "run", "a"], "hint: clusterctl launch -- tune run a\n"),
        (["a.py"], "hint: clusterctl launch -- a.py\n"),
        (["init", "--nope"], "error: clusterctl init: there is no flag --nope\n"),
        (["init", "--nope"], "hint: clusterctl init --help"),
        (["init", "--forc"], "error: clusterctl init: there is no flag --forc\n"),
        (["init", "--forc"], "hint: clusterctl init --force\n"),
        (["--print-completion", "csh"], "hint: clusterctl --print-completion tcsh\n"),
    ],
)
def test_a_wrong_command_line_is_usage(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.splitlines()[-1].startswith(
        ("hint: clusterctl ", "hint: or name the hosts: clusterctl ")
    )
    assert "Traceback" not in err


@pytest.mark.parametrize("verb", sorted(foreign_verbs.VERBS.keys() - VERBS))
def test_a_verb_of_another_tool_gets_a_command_that_parses(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb]) == 2
    hint = capsys.readouterr().err.splitlines()[-1].removeprefix("hint: clusterctl ")
    words, _ = split_command(shlex.split(hint))
    with contextlib.suppress(SystemExit):  # of --help and --version
        build_parser(words[:1]).parse_args(words)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_the_common_flags_and_shows_examples(verb: str) -> None:
    parser = build_parser([verb])
    required = {
        "resume": ["--checkpoint", "latest"],
        "join": ["--nodes", "a"],
        "export": ["--to", "mpi"],
        "forget": ["a"],
        "notify": ["--test"],
        "pull": ["out"],
        "sandbox": ["status"],
    }
    words = required.get(verb, [])
    for line in (["-v", "-q", verb, *words], [verb, "-v", "-q", *words]):
        args = parser.parse_args(line)
        assert (args.verbose, args.quiet) == (1, True)
    args = parser.parse_args([verb, *words])
    assert (args.verbose, args.quiet) == (0, False)
    assert verb == "sandbox" or "inventory" in args
    for example in EXAMPLES[verb]:
        _, *given = shlex.split(example)
        assert given[0] == verb
        parser.parse_args(split_command(given)[0])


@pytest.mark.parametrize("words", [["up", "-q"], ["-q", "status"], ["heal", "-v"]])
def test_the_actions_of_the_sandbox_take_the_common_flags(words: list[str]) -> None:
    args = build_parser(["sandbox"]).parse_args(["sandbox", *words])
    assert args.verbose or args.quiet


@pytest.mark.parametrize("verb", ["status", "stop", "logs"])
def test_an_unknown_run_without_an_inventory_asks_for_one(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path))
    assert main([verb, "foo"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: run foo has no record on this machine, and hosts.yaml,")
    assert err.endswith(f"hint: clusterctl {verb} foo -i hosts.yaml\n")


def test_a_run_that_is_no_text_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path))
    cluster = Cluster(name="lab", nodes=(Node(host="a", name="a", ssh=Ssh()),))
    Records().write(RunRecord(run="lab-1", began=1.0, cluster=cluster))
    assert main(["status", os.fsdecode(b"caf\xe9")]) == 1
    shown.seek(0)
    assert "has no record on this machine" in shown.read()


@pytest.mark.parametrize("verb", VERBS)
def test_help_tells_every_default(verb: str) -> None:
    for parser in parsers(build_parser([verb])):
        for action in parser._actions:
            if action.default in (None, False, 0, "", (), [], argparse.SUPPRESS):
                continue
            assert "(default: " in (action.help or ""), (verb, action.dest)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ClusterError("no\nand no", hint="try"), 1, "error: no\nerror: and no\nhint: try\n"),
        (UsageError("no"), 2, "error: no\nhint: clusterctl init --help\n"),
        (UsageError("no", hint="b"), 2, "error: no\nhint: b\n"),
        (ClusterError("no", hint="a: x\nb: y"), 1, "error: no\nhint: a: x\nhint: b: y\n"),
        (
            InventoryError(("h:1: a", "h:2: b"), hint="c"),
            2,
            "error: h:1: a\nerror: h:2: b\nhint: c\n",
        ),
        (CouldNotTell("gpu01 is silent"), 3, "error: gpu01 is silent\n"),
        (LaunchRefused("busy"), 125, "error: busy\n"),
        (ClusterError("\x1b]0;t\x07\x1b[2Jno", hint="\x1b[31mtry"), 1, "error: no\nhint: try\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
    ],
)
def test_each_end_has_its_code(
    error: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ending(monkeypatch, error) == code
    assert capsys.readouterr().err == told


def test_a_bug_says_that_it_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert ending(monkeypatch, ZeroDivisionError()) == 70
    assert "this is a bug in clusterctl" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_reader_that_has_gone_is_no_bug() -> None:
    command = f"{sys.executable} -m clusterctl --print-completion bash | head -c 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "--version", "check --explain storage.shared"])
def test_output_on_a_full_disk_is_an_error_in_words(words: str, unbuffered: str) -> None:
    command = f"{sys.executable} -m clusterctl {words} > /dev/full"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_messages_that_cannot_be_written_change_no_exit_code() -> None:
    command = f"{sys.executable} -m clusterctl check --explain nope 2> /dev/full"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 2


def test_streams_that_are_closed_are_no_bug() -> None:
    command = f"{sys.executable} -m clusterctl check --explain storage.shared"
    for closed in (">&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_what_the_locale_cannot_show_is_escaped() -> None:
    code = (
        "from clusterctl.cli.shared.main import main; main(['--version'])\nprint('\\u00e9 \\u2713')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.splitlines()[-1] == r"\xe9 \u2713"


def test_output_whose_reader_exits_early_leaves_the_exit_code() -> None:
    """As with `check | head -1`: print and rich end such a process in ways of their own."""
    program = (
        "from clusterctl.cli.shared.output import readers_may_leave\n"
        "from clusterctl.report.console import Screen\n"
        "for write in (print, Screen().out.print):\n"
        "    with readers_may_leave():\n"
        "        for _ in range(20_000): write('a line')\n"
        "raise SystemExit(7)\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run([sys.executable, "-c", program], stdout=gone, check=False)
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("words", "hint"), [("launch", "launch --help"), ("nix", "--help"), ("", "--help")]
)
def test_help_of_a_verb_is_its_flag(
    words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", *words.split()]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"hint: clusterctl {hint}"
