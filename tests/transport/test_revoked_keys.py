"""RevokedHostKeys is obeyed as OpenSSH obeys it: a list of keys or a KRL, closed where unread."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.transport.interface import Reply, Request
from clusterctl.transport.pool import Pool
from tests.failed_reply import error_of
from tests.sshd_servers import USER, Sshd, cluster_of, make_key

HELLO = Request(op="hello", args={})
KINDS = ("list", "krl")


def hello(server: Sshd, *, accept_new: bool = False, **ssh: object) -> Reply:
    with Pool(cluster_of(server.node("n", **ssh)), accept_new=accept_new) as pool:
        (reply,) = pool.call({"n": HELLO})
    return reply


def revoke(path: Path, kind: str, public: Path) -> None:
    if kind == "list":
        path.write_text(f"# stolen\n\n{public.read_text()}")
    else:
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(path), str(public)], check=True)


@pytest.mark.parametrize("via", ["paramiko", "openssh"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_revoked_key_is_refused_even_where_it_is_known(
    sshd: Sshd, ssh_config: Path, tmp_path: Path, kind: str, via: str
) -> None:
    revoked = tmp_path / "revoked keys"
    revoke(revoked, kind, make_key(tmp_path / "other").with_suffix(".pub"))
    ssh_config.write_text(f'Host *\n  RevokedHostKeys "{revoked}"\n')
    assert hello(sshd, via=via).ok

    revoke(revoked, kind, sshd.folder / "host_key.pub")
    for accept_new in (False, True):
        reply = hello(sshd, via=via, accept_new=accept_new)
        assert reply.state == "hostkey", reply
        assert "revoked" in error_of(reply).message
        assert str(revoked) in error_of(reply).message
        assert error_of(reply).hint == "do not use this host before you know why"


def test_a_revoked_key_of_a_jump_host_is_refused(
    make_sshd: Callable[..., Sshd], ssh_config: Path, tmp_path: Path
) -> None:
    gate, target = make_sshd(), make_sshd()
    revoke(tmp_path / "revoked", "list", gate.folder / "host_key.pub")
    ssh_config.write_text(f"RevokedHostKeys {tmp_path}/revoked\n")
    reply = hello(target, jump=f"{USER}@127.0.0.1:{gate.port}")
    assert (reply.state, error_of(reply).phase) == ("hostkey", "jump"), reply
    assert error_of(reply).hint == "do not use this host before you know why"


@pytest.mark.parametrize("via", ["paramiko", "openssh"])
@pytest.mark.parametrize("fault", ["missing", "folder", "broken", "cut"])
def test_a_file_that_cannot_be_read_lets_no_host_in(
    sshd: Sshd, ssh_config: Path, tmp_path: Path, fault: str, via: str
) -> None:
    revoked = tmp_path / "revoked"
    if fault == "folder":
        revoked.mkdir()
    elif fault != "missing":
        revoke(revoked, "krl", make_key(tmp_path / "other").with_suffix(".pub"))
        content = revoked.read_bytes()
        revoked.write_bytes(content[:8] + b"x" * 40 if fault == "broken" else content[:-9])
    ssh_config.write_text(f"RevokedHostKeys {revoked}\n")
    reply = hello(sshd, via=via, accept_new=True)
    assert reply.state == "hostkey", reply


def test_a_krl_without_ssh_keygen_is_not_guessed(
    sshd: Sshd, ssh_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoke(tmp_path / "revoked", "krl", make_key(tmp_path / "other").with_suffix(".pub"))
    ssh_config.write_text(f"RevokedHostKeys {tmp_path}/revoked\n")
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[0])
    reply = hello(sshd)
    assert reply.state == "hostkey", reply
    assert "only ssh-keygen reads a KRL" in error_of(reply).message
    assert "via: openssh" in error_of(reply).hint


def test_tokens_in_the_name_are_expanded_as_by_newer_versions_of_openssh(
    sshd: Sshd, ssh_config: Path, tmp_path: Path
) -> None:
    revoke(tmp_path / "revoked-127.0.0.1", "list", sshd.folder / "host_key.pub")
    ssh_config.write_text(f"RevokedHostKeys {tmp_path}/revoked-%h\n")
    reply = hello(sshd)
    assert "is revoked (RevokedHostKeys" in error_of(reply).message
