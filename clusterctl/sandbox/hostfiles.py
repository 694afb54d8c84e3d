"""The files of netns hosts and of the controller's side: accounts, host names, homes."""

import grp
import os
import pwd
import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.sandbox import shells
from clusterctl.sandbox.layout import ROOT, Host, Layout

FIRST_UID = 2000
"""The user id of the first user who is not root."""
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def check_user(name: str) -> None:
    """Check that a new account can have this name."""
    taken = name != ROOT and name in {entry.pw_name for entry in pwd.getpwall()}
    if taken or not _USER.fullmatch(name):
        found = f"{name!r}, an account of this machine" if taken else repr(name)
        raise UsageError(f"--users: expected root or new names such as ada, found {found}")


def accounts(users: Iterable[str]) -> dict[str, int]:
    """Return the user ids of these users and of root."""
    ordinary = [name for name in dict.fromkeys(users) if name != ROOT]
    return {ROOT: 0, **{name: FIRST_UID + number for number, name in enumerate(ordinary)}}


def write_controller(layout: Layout, hosts: Iterable[Host], controller: Iterable[str]) -> None:
    """Write the controller's /etc/hosts, with these hosts and the controller's own addresses."""
    etc = layout.controller_etc
    etc.mkdir(parents=True)
    (etc / "hosts").write_text(_etc_hosts(hosts, controller))


def write_host(
    layout: Layout, host: Host, hosts: Sequence[Host], controller: Iterable[str]
) -> None:
    """Write a host's own files."""
    folder = layout.host(host.name)
    for name in ("root", "home", "tmp", "var-tmp", "workspace", "etc", "bin", "shared"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var-tmp", "workspace"):
        (folder / name).chmod(0o1777)
    etc = folder / "etc"
    (etc / "hosts").write_text(_etc_hosts(hosts, controller))
    (etc / "hostname").write_text(f"{host.name}\n")
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    uids = accounts(host.users)
    login = shells.path_of(host.shell)
    (etc / "passwd").write_text(_passwd(uids, login))
    (etc / "group").write_text(_group(uids))
    names = (*uids, "sshd")
    (etc / "shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in names))
    for user, uid in uids.items():
        public = layout.key_of(user).with_suffix(".pub").read_text()
        _write_home(folder / home_of(user)[1:], uid, public, host.shell)


def home_of(user: str) -> str:
    """Return a user's home, as the host sees it."""
    return "/root" if user == ROOT else f"/home/{user}"


def _write_home(home: Path, uid: int, key: str, shell: str) -> None:
    (home / ".ssh").mkdir(mode=0o700, parents=True)
    authorized = home / ".ssh" / "authorized_keys"
    authorized.write_text(key)
    authorized.chmod(0o600)
    shells.write_rc_files(home, shell)
    # Other users may need a folder below root's: the job's Python may be there.
    home.chmod(0o700 if uid else 0o711)
    for path in (home, *home.rglob("*")):
        os.chown(path, uid, uid)


def _etc_hosts(hosts: Iterable[Host], controller: Iterable[str]) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{address} controller" for address in controller]
    for host in hosts:
        for address in host.addresses:
            lines.append(f"{address} {host.name}")
            if ":" not in address:
                # A dual-stack server asks for the name of such an address, and would wait for a
                # name server.
                lines.append(f"::ffff:{address} {host.name}.sandbox")
    return "\n".join(lines) + "\n"


def _passwd(uids: dict[str, int], login: str) -> str:
    """Return /etc/passwd: the users with their home and shell, and the machine's accounts."""
    lines = [f"{user}:x:{uid}:{uid}:{user}:{home_of(user)}:{login}" for user, uid in uids.items()]
    lines += [
        f"{e.pw_name}:x:{e.pw_uid}:{e.pw_gid}:{e.pw_gecos}:{e.pw_dir}:{e.pw_shell}"
        for e in pwd.getpwall()
        if e.pw_uid not in uids.values()
    ]
    return "\n".join(lines) + "\n"


def _group(uids: dict[str, int]) -> str:
    """Return /etc/group: a group of each user's own, and the machine's groups."""
    lines = [f"{user}:x:{uid}:" for user, uid in uids.items()]
    lines += [f"{e.gr_name}:x:{e.gr_gid}:" for e in grp.getgrall() if e.gr_gid not in uids.values()]
    return "\n".join(lines) + "\n"
