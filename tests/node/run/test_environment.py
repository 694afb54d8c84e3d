"""Who sets a variable, and who wins."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.run.processes import environment
from clusterctl.node.run.processes.environment import job_environment


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {b"PATH": b"/usr/bin:/bin", b"HOME": b"/root", b"NODES_OWN": b"node", b"TAKEN": b"node"}
    session = {b"SSH_CONNECTION": b"1", b"RANK": b"7", b"TORCHELASTIC_RUN_ID": b"old"}
    monkeypatch.setattr(environment, "original_environment", lambda: {**own, **session})


def job(*env: tuple[str, str, str], **more: object) -> dict[str, object]:
    return {"env": [list(entry) for entry in env], "workdir": "/code", **more}


def test_what_belongs_to_the_session_or_another_launcher_is_left_out() -> None:
    env = job_environment(job(), {})
    assert env == {
        b"PATH": b"/usr/bin:/bin",
        b"HOME": b"/root",
        b"NODES_OWN": b"node",
        b"TAKEN": b"node",
        b"PWD": b"/code",
    }


def test_the_stronger_wins() -> None:
    env = job_environment(
        job(
            ("TAKEN", "weak", "built-in"),
            ("NODES_OWN", "chosen", "chosen"),
            ("FREE", "built in", "built-in"),
            ("BOTH", "chosen", "chosen"),
            ("ASKED", "job", "asked"),
            ("RANKS", "asked", "asked"),
            ("RANKS", "launcher", "launcher"),
            env_init="export BOTH=init ASKED=init TAKEN=init",
        ),
        {"SECRET": "s", "ASKED": "secret"},
    )
    assert (env[b"NODES_OWN"], env[b"FREE"]) == (b"chosen", b"built in")
    assert (env[b"BOTH"], env[b"TAKEN"]) == (b"init", b"init")
    assert (env[b"ASKED"], env[b"RANKS"], env[b"SECRET"]) == (b"secret", b"launcher", b"s")


def test_the_interpreters_folder_comes_first_on_path() -> None:
    env = job_environment(job(path_first="/venv/bin", env_init='SEEN="$PATH"; export SEEN'), {})
    assert env[b"PATH"] == env[b"SEEN"] == b"/venv/bin:/usr/bin:/bin"


def test_what_env_init_prints_and_leaves_running_does_not_matter() -> None:
    line = "seq 100000; sleep 30 & export DONE='multi\nline'"
    assert job_environment(job(env_init=line), {})[b"DONE"] == b"multi\nline"


_TOOLS = {
    "venv": ("env/bin/activate", 'PATH="{env}/bin:$PATH"; export PATH\n', ". {file}"),
    "conda": (
        "etc/profile.d/conda.sh",
        'conda() {{ CONDA_PREFIX={env}; PATH="{env}/bin:$PATH"; export CONDA_PREFIX PATH; }}\n',
        ". {file}; conda activate env",
    ),
    "modules": (
        "init/bash",
        """module() {{ eval "$(printf 'export PATH=%s:$PATH;' {env}/bin)"; }}\n""",
        ". {file}; module load env",
    ),
    "pyenv": (
        "bin/pyenv",
        "#!/bin/sh\necho 'export PATH={env}/bin:$PATH'\n",
        'eval "$({file} init -)"',
    ),
}
"""A file that the tool installs, what it does, and the line that people write."""


@pytest.mark.parametrize("tool", _TOOLS)
def test_ranks_get_the_python_of_the_tool_that_the_line_activates(
    tool: str, tmp_path: Path
) -> None:
    name, text, line = _TOOLS[tool]
    file, python = tmp_path / name, tmp_path / "env/bin/python"
    for path in (python, file):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    file.write_text(text.format(env=tmp_path / "env"))
    env = job_environment(job(env_init=line.format(file=file)), {})
    assert shutil.which("python", path=env[b"PATH"].decode()) == str(python)


def test_a_variable_that_env_init_removes_is_gone() -> None:
    assert b"NODES_OWN" not in job_environment(job(env_init="unset NODES_OWN"), {})


@pytest.mark.parametrize("line", ["false", "exit 3", "echo words; no-such-program", "if"])
def test_a_line_that_fails_is_an_error_with_its_words(line: str) -> None:
    with pytest.raises(OperationError, match="exit code") as caught:
        job_environment(job(env_init=line), {})
    assert caught.value.kind == "env-init"
    assert line in str(caught.value)


def test_the_last_line_that_env_init_printed_is_heard() -> None:
    heard: list[str] = []
    job_environment(job(env_init="seq 100000; echo loading modules; echo"), {}, heard=heard)
    job_environment(job(env_init="true"), {}, heard=heard)
    assert heard == ["loading modules"]


@pytest.mark.parametrize("line", ["exit 0", "exec true"])
def test_a_line_that_leaves_the_shell_leaves_no_job_without_its_environment(line: str) -> None:
    with pytest.raises(OperationError, match="ended the shell") as caught:
        job_environment(job(env_init=f"echo words; {line}"), {})
    assert caught.value.details["output"] == ["words"]


def test_a_line_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ENV_INIT_SECONDS", 0.3)
    with pytest.raises(OperationError, match="did not end within"):
        job_environment(job(env_init="sleep 30"), {})


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (the count is all)
    job_environment(job(env_init="true"), {})
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
