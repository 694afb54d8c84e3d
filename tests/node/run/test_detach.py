"""What logind does to the processes of a session, read from what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.run.processes.detach import command_for, kills_at_logout, owned_by

# busctl of systemd 252.
KILLS = 'b true\nas 0\nas 1 "root"\n'
KEEPS = 'b false\nas 0\nas 1 "root"\n'
ONLY = 'b true\nas 2 "ada" "bob"\nas 0\n'


@pytest.mark.parametrize(
    ("text", "user", "killed"),
    [
        (KILLS, "ada", True),
        (KILLS, "root", False),
        (KEEPS, "ada", False),
        (ONLY, "bob", True),
        (ONLY, "carl", False),
    ],
)
def test_whose_processes_are_killed_at_logout(text: str, user: str, killed: bool) -> None:  # noqa: FBT001
    assert kills_at_logout(text, user) is killed


@pytest.mark.parametrize("text", ["", "Failed to get property\n"])
def test_another_answer_tells_nothing(text: str) -> None:
    assert kills_at_logout(text, "ada") is None


@pytest.mark.parametrize(
    ("cgroup", "session"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", True),
        ("12:pids:/user.slice/user-0.slice/session-c1.scope\n0::/\n", True),
        ("0::/system.slice/ssh.service\n", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n", False),
        ("0::/docker/4f2a\n", False),
        ("", False),
    ],
)
def test_a_login_session_is_known_by_its_cgroup(cgroup: str, session: bool) -> None:  # noqa: FBT001
    assert owned_by(cgroup, "session-", ".scope") is session


SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
DESKTOP = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope\n"
KILLING, KEEPING = f"printf '{KILLS}'", f"printf '{KEEPS}'"
SYSTEM, USER = ["systemd-run"], ["systemd-run", "--user"]
IN_USER_SCOPE = ["env", "XDG_RUNTIME_DIR=/run/user/1000", *USER]


@pytest.mark.parametrize(
    ("unit", "mode", "uid", "lingers", "begins"),
    [
        ("sshd@0-10.0.0.1:22-10.0.0.2:5-0.service", "control-group", 0, False, SYSTEM),
        ("sshd@0-10.0.0.1:22-10.0.0.2:5-0.service", "mixed", 0, False, SYSTEM),
        ("ssh@1-10.0.0.1:22-10.0.0.2:5.service", "process", 1000, False, []),
        ("ssh@1-10.0.0.1:22-10.0.0.2:5.service", "none", 0, False, []),
        ("ssh@1-10.0.0.1:22-10.0.0.2:5.service", "control-group", 1000, True, IN_USER_SCOPE),
        ("sshd@4.service", "control-group", 1000, False, "sshd@4.service: KillMode=control-group"),
        ("sshd@4.service", "", 1000, False, "KillMode=?"),
        ("sshd.service", "control-group", 1000, False, []),
    ],
)
def test_an_sshd_of_one_connection_does_not_take_the_run_with_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
    mode: str,
    uid: int,
    lingers: bool,  # noqa: FBT001
    begins: list[str] | str,
) -> None:
    asked = f'[ "$4" = "{unit}" ] && echo KillMode={mode}' if mode else "exit 1"
    for name, text in (("systemctl", asked), ("systemd-run", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if lingers:
        (tmp_path / "ada").touch()
    cgroup = f"0::/system.slice/system-sshd.slice/{unit}\n"

    def words() -> list[str]:
        return command_for("unit", cgroup, "ada", uid=uid, linger=str(tmp_path))

    if isinstance(begins, str):
        with pytest.raises(OperationError, match=re.escape(begins)):
            words()
    else:
        assert words()[: len(begins)] == begins
        assert bool(words()) == bool(begins)


@pytest.mark.parametrize(
    ("cgroup", "uid", "lingers", "busctl", "begins"),
    [
        (SESSION, 1000, False, KEEPING, []),
        (SESSION, 1000, True, KILLING, USER),
        (SESSION, 1000, False, KILLING, "KillUserProcesses=yes"),
        (SESSION, 1000, False, "exit 1", "busctl gave no answer"),
        (SESSION, 1000, False, "", "busctl gave no answer"),
        (SESSION, 1000, True, "exit 1", USER),
        (SESSION, 0, False, "exit 1", SYSTEM),
        (DESKTOP, 1000, False, KEEPING, "at the last logout"),
        (DESKTOP, 1000, True, KILLING, []),
        (DESKTOP, 0, False, KEEPING, SYSTEM),
        ("0::/system.slice/ssh.service\n", 1000, False, "exit 1", []),
    ],
)
def test_a_run_that_a_logout_would_end_is_moved_or_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cgroup: str,
    uid: int,
    lingers: bool,  # noqa: FBT001
    busctl: str,
    begins: list[str] | str,
) -> None:
    for name, text in (("busctl", busctl), ("systemd-run", "exit 0"), ("printf", "")):
        if text:
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if lingers:
        (tmp_path / "ada").touch()

    def words() -> list[str]:
        return command_for("unit", cgroup, "ada", uid=uid, linger=str(tmp_path))

    if isinstance(begins, str):
        with pytest.raises(OperationError, match=begins) as refused:
            words()
        assert refused.value.head()["error"]["hint"] == "loginctl enable-linger ada"
    else:
        assert words()[: len(begins)] == begins
        assert bool(words()) == bool(begins)
