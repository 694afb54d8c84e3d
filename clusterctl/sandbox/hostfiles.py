"""The files that make netns hosts, and the controller's side, differ: accounts, names, homes."""

from __future__ import annotations

import os
import pwd
import uuid
from collections.abc import Sequence
from pathlib import Path

from clusterctl.sandbox import shells
from clusterctl.sandbox.layout import Host, Layout

ADA = 2000
"""User id of the second account, which is not root."""


def write_controller(layout: Layout, hosts: Sequence[Host], *, address: str) -> None:
    """Write the controller's /etc/hosts."""
    etc = layout.controller_etc
    etc.mkdir(parents=True)
    (etc / "hosts").write_text(_etc_hosts(hosts, address))


def write_host(layout: Layout, host: Host, hosts: Sequence[Host], *, controller: str) -> None:
    """Fill the folder that holds a host's own files."""
    folder = layout.host(host.name)
    for name in ("root", "home/ada", "tmp", "var-tmp", "workspace", "etc", "bin", "shared"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var-tmp", "workspace"):
        (folder / name).chmod(0o1777)
    etc = folder / "etc"
    (etc / "hosts").write_text(_etc_hosts(hosts, controller))
    (etc / "hostname").write_text(f"{host.name}\n")
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "passwd").write_text(_passwd(home="/root", login=shells.path_of(host.shell)))
    accounts = ("root", "ada", "sshd")
    (etc / "shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in accounts))
    key = layout.key.with_suffix(".pub").read_text()
    for home, owner in ((folder / "root", 0), (folder / "home" / "ada", ADA)):
        _write_home(home, owner, key, host.shell)


def _write_home(home: Path, owner: int, key: str, shell: str) -> None:
    (home / ".ssh").mkdir(mode=0o700)
    authorized = home / ".ssh" / "authorized_keys"
    authorized.write_text(key)
    authorized.chmod(0o600)
    shells.furnish(home, shell)
    home.chmod(0o700)
    for path in (home, *home.rglob("*")):
        os.chown(path, owner, owner)


def _etc_hosts(hosts: Sequence[Host], controller: str) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost", f"{controller} controller"]
    lines += [f"{host.address} {host.name}" for host in hosts]
    # A dual-stack server asks for the name of such an address, and would wait for a name server.
    lines += [f"::ffff:{host.address} {host.name}.sandbox" for host in hosts]
    return "\n".join(lines) + "\n"


def _passwd(*, home: str, login: str) -> str:
    """Return the machine's accounts, with this home and shell for root, and with `ada`."""
    lines = [f"root:x:0:0:root:{home}:{login}", f"ada:x:{ADA}:{ADA}:Ada:/home/ada:{login}"]
    lines += [
        f"{e.pw_name}:x:{e.pw_uid}:{e.pw_gid}:{e.pw_gecos}:{e.pw_dir}:{e.pw_shell}"
        for e in pwd.getpwall()
        if e.pw_uid not in {0, ADA}
    ]
    return "\n".join(lines) + "\n"
