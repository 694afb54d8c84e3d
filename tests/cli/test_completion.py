"""Shell completion, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from clusterctl.cli.shared.main import main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["--print-completion", shell]) == 0
    return capsys.readouterr().out


def completed(script_: str, *words: str) -> list[str]:
    """Ask bash what it would complete the last word to."""
    code = (
        f"{script_}\n"
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        "_shtab_clusterctl\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_verbs_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    bash = script("bash", capsys)
    assert completed(bash, "clusterctl", "che") == ["check"]
    assert set(completed(bash, "clusterctl", "st")) == {"status", "stop"}
    assert "--exclude" in completed(bash, "clusterctl", "check", "--ex")
    assert completed(bash, "clusterctl", "jo") == ["join"]
    assert completed(bash, "clusterctl", "join", "--no") == ["--nodes"]
    assert "--check" not in completed(bash, "clusterctl", "init", "--")


def test_bash_completes_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash = script("bash", capsys)
    (tmp_path / "lab.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert completed(bash, "clusterctl", "check", "-i", "la") == ["lab.yaml"]


def test_fish_completes_verbs_flags_and_choices(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    path = tmp_path / "completion"
    path.write_text(script("fish", capsys))

    def words(line: str) -> list[str]:
        code = f"source {path}; complete -C {line!r}"
        argv = ["fish", "--no-config", "-c", code]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    assert words("clusterctl che") == ["check"]
    assert words("clusterctl jo") == ["join"]
    assert "--exclude" in words("clusterctl check --ex")
    assert "--check" not in words("clusterctl init --")
    assert "torchrun" in words("clusterctl launch --launcher ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_the_script_is_one_that_the_shell_reads(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = script(shell, capsys)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "completion"
    path.write_text(text)
    check = [shell, "-n"] if shell in {"bash", "fish"} else [shell, "-f", "-n"]
    done = subprocess.run([*check, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
