"""What logind does to the processes of a session, read from what it prints."""

from __future__ import annotations

import pytest

from clusterctl.node.detach import Logout, in_session, read_logout

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
        ("", "ada", False),
        ("Failed to get property\n", "ada", False),
    ],
)
def test_whose_processes_are_killed_at_logout(text: str, user: str, killed: bool) -> None:  # noqa: FBT001
    assert read_logout(text).kills_of(user) is killed


def test_no_logind_kills_nobody() -> None:
    assert not Logout(kills=False).kills_of("ada")


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
    assert in_session(cgroup) is session
