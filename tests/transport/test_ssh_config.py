"""ssh_config is asked of OpenSSH itself, and the inventory's words go first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.transport.failure import Failed
from clusterctl.transport.ssh_config import Oracle, endpoint, expand_tokens

NODE = Node(host="gpu1", name="gpu1", ssh=Ssh())


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "more").write_text("Host gpu*\n  User included\n")
    path = tmp_path / "config"
    path.write_text(
        f"Include {tmp_path}/more\n"
        "Host gpu1\n  HostName 10.0.0.1\n  Port 2200\n  IdentityFile ~/.ssh/gpu\n"
        "  IdentitiesOnly yes\n  ProxyJump me@bastion:2222\n  HostKeyAlias alias\n"
        "  UserKnownHostsFile ~/known /etc/known\n  ConnectTimeout 7\n"
        'Match user nobody-else exec "false"\n  Port 1\n'
    )
    return path


def test_what_openssh_says_of_a_host(config: Path) -> None:
    found = Oracle(config=config).resolve(NODE)
    assert (found.hostname, found.port, found.user) == ("10.0.0.1", 2200, "included")
    assert found.identities == (Path("~/.ssh/gpu").expanduser(),)
    assert found.identities_only
    assert found.jump == "me@bastion:2222"
    assert found.key_name == "alias"
    assert found.known_hosts[:2] == (Path("~/known").expanduser(), Path("/etc/known"))
    assert found.connect_timeout == 7
    assert found.target == "10.0.0.1:2200"


def test_known_hosts_files_may_have_spaces_in_their_names(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        'UserKnownHostsFile "/my known" ~/x "~/b  c"\nGlobalKnownHostsFile none\n'
    )
    found = Oracle(config=tmp_path / "config").resolve(NODE)
    home = Path.home()
    assert found.known_hosts == (Path("/my known"), home / "x", home / "b  c")


def test_known_hosts_files_that_are_switched_off_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("UserKnownHostsFile none\nGlobalKnownHostsFile none\n")
    assert Oracle(config=tmp_path / "config").resolve(NODE).known_hosts == ()


def test_the_inventory_goes_first(config: Path) -> None:
    ssh = Ssh(user="root", port=23, identity="/key", jump="none")
    found = Oracle(config=config).resolve(replace(NODE, ssh=ssh))
    assert (found.user, found.port, found.identity) == ("root", 23, Path("/key"))
    assert found.jump is None


def test_a_question_is_asked_once(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = Oracle(config=config)
    first = oracle.resolve(NODE)
    monkeypatch.setattr("subprocess.run", None)
    assert oracle.resolve(NODE) == first


def test_a_broken_ssh_config_is_told_in_openssh_words(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Nonsense yes\n")
    with pytest.raises(Failed, match="Bad configuration option") as caught:
        Oracle(config=tmp_path / "config").resolve(NODE)
    assert caught.value.phase == "config"


def test_without_an_ssh_program_the_inventory_is_enough(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    oracle = Oracle()
    found = [oracle.resolve(replace(NODE, ssh=Ssh(user="me"))) for _ in range(2)][1]
    assert (found.hostname, found.port, found.user) == ("gpu1", 22, "me")
    assert caplog.text.count("only the inventory is read") == 1


def test_a_host_that_looks_like_an_option() -> None:
    with pytest.raises(Failed):
        Oracle().resolve(replace(NODE, host="-oProxyCommand=touch /tmp/x"))


def test_tokens_of_a_proxy_command() -> None:
    where = ("10.0.0.1", 22, "me")
    assert expand_tokens("nc %h %p %% %r@%n %z", host="a", endpoint=where) == (
        "nc 10.0.0.1 22 % me@a %z"
    )


def test_an_agent_that_ssh_config_names() -> None:
    assert endpoint(NODE, {"identityagent": ["none"]}).agent == ""
    assert endpoint(NODE, {"identityagent": ["/run/a"]}).agent == "/run/a"
    assert endpoint(NODE, {}).agent is None
