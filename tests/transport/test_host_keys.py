"""Whose word counts where a host's key is recorded more than once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.errors import NodeError
from clusterctl.transport.ssh.host_keys import HostKeyVerifier, own_file
from clusterctl.transport.ssh.known_hosts import record
from clusterctl.transport.ssh.ssh_config import Endpoint
from tests.transport.test_known_hosts import blob, line


def endpoint(path: Path) -> Endpoint:
    """Return a host that OpenSSH knows under two names: with its port, and by its alias."""
    return Endpoint(
        host="gpu1", hostname="10.0.0.1", port=2222, user="u", alias="alias", known_hosts=(path,)
    )


NAMES = ("[alias]:2222", "alias")


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1]])
def test_a_key_that_is_revoked_under_one_name_is_refused_though_known_under_the_other(
    tmp_path: Path, own_state: Path, names: tuple[str, str]
) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"{line(names[0], b'1')}\n@revoked {line(names[1], b'1')}\n")
    for accept_new in (False, True):
        with pytest.raises(NodeError, match="is revoked"):
            HostKeyVerifier("lab", accept_new=accept_new).check(
                endpoint(path), "ssh-ed25519", blob(b"1")
            )
    assert not own_file("lab").exists()


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1]])
def test_a_key_that_is_known_under_one_name_is_accepted_though_another_is_under_the_other(
    tmp_path: Path, own_state: Path, names: tuple[str, str]
) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"{line(names[0], b'1')}\n{line(names[1], b'2')}\n")
    trust = HostKeyVerifier("lab", accept_new=True)
    for key in (b"1", b"2"):
        trust.check(endpoint(path), "ssh-ed25519", blob(key))
    with pytest.raises(NodeError, match="is not the recorded one"):
        trust.check(endpoint(path), "ssh-ed25519", blob(b"3"))
    assert not own_file("lab").exists()


def test_an_unknown_key_is_recorded_only_where_new_ones_are_accepted(
    tmp_path: Path, own_state: Path
) -> None:
    host = endpoint(tmp_path / "known_hosts")
    with pytest.raises(NodeError, match="is not known"):
        HostKeyVerifier("lab", accept_new=False).check(host, "ssh-ed25519", blob(b"1"))
    trust = HostKeyVerifier("lab", accept_new=True)
    trust.check(host, "ssh-ed25519", blob(b"1"))
    with pytest.raises(NodeError, match="is not the recorded one") as changed:
        trust.check(host, "ssh-ed25519", blob(b"2"))
    assert "clusterctl forget gpu1" in changed.value.hint
    HostKeyVerifier("lab", accept_new=False).check(host, "ssh-ed25519", blob(b"1"))
    assert HostKeyVerifier("lab", accept_new=False).key_types(host) == ("ssh-ed25519",)


def test_a_key_that_another_cluster_accepted_is_taken_over(own_state: Path, tmp_path: Path) -> None:
    host = endpoint(tmp_path / "known_hosts")
    record(own_file("old"), "[alias]:2222", "ssh-ed25519", blob(b"1"))
    trust = HostKeyVerifier("new", accept_new=False)
    assert trust.key_types(host) == ("ssh-ed25519",)
    with pytest.raises(NodeError, match="is not known"):
        trust.check(host, "ssh-ed25519", blob(b"2"))
    trust.check(host, "ssh-ed25519", blob(b"1"))
    assert own_file("new").exists()
    assert not (tmp_path / "known_hosts").exists()


def test_only_this_user_may_read_what_is_recorded(own_state: Path, tmp_path: Path) -> None:
    host = endpoint(tmp_path / "known_hosts")
    before = os.umask(0o002)
    try:
        HostKeyVerifier("lab", accept_new=True).openssh_options(host)
        HostKeyVerifier("lab", accept_new=True).check(host, "ssh-ed25519", blob(b"1"))
    finally:
        os.umask(before)
    made = [own_state, *own_state.rglob("*")]
    assert {path.name for path in made} >= {"clusterctl", "lab", "known_hosts", "known_hosts.lock"}
    assert not [path for path in made if path.stat().st_mode & 0o077]


def test_a_folder_that_others_may_write_is_refused_with_the_command_that_mends_it(
    own_state: Path, tmp_path: Path
) -> None:
    own_file("lab").parent.mkdir(parents=True)
    own_file("lab").parent.parent.chmod(0o775)
    trust = HostKeyVerifier("lab", accept_new=True)
    host = endpoint(tmp_path / "known_hosts")
    asked = (
        lambda: trust.check(host, "ssh-ed25519", blob(b"1")),
        lambda: trust.openssh_options(host),
    )
    for ask in asked:
        with pytest.raises(NodeError, match="is not a folder of this user alone") as refused:
            ask()
        assert refused.value.hint == f"chmod -R go-w {own_state / 'clusterctl'}"


def test_ssh_needs_no_folder_of_ours_unless_it_records_keys(
    tmp_path: Path, own_state: Path
) -> None:
    HostKeyVerifier("lab", accept_new=False).openssh_options(endpoint(tmp_path / "known_hosts"))
    assert not own_state.exists()
    HostKeyVerifier("lab", accept_new=True).openssh_options(endpoint(tmp_path / "known_hosts"))
    assert own_file("lab").exists()


def test_ssh_is_given_only_those_files_of_other_clusters_that_name_the_host(
    tmp_path: Path, own_state: Path
) -> None:
    host = endpoint(tmp_path / "known_hosts")
    for number in range(40):
        record(own_file(f"other{number}"), "elsewhere", "ssh-ed25519", blob(b"1"))
    record(own_file("same"), NAMES[0], "ssh-ed25519", blob(b"1"))
    options = HostKeyVerifier("lab", accept_new=False).openssh_options(host)
    (files,) = [option for option in options if option.startswith("UserKnownHostsFile=")]
    named = files.split('"')[1::2]
    assert str(own_file("same")) in named
    assert len(named) == 3
