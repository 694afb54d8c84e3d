"""ssh_config is asked of OpenSSH itself, and the inventory's words go first."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node, Ssh
from clusterctl.transport.ssh.ssh_config import Endpoint, SshConfigResolver, endpoint
from tests.damage import damaged

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
    found = SshConfigResolver(config=config).resolve(NODE)
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
    found = SshConfigResolver(config=tmp_path / "config").resolve(NODE)
    home = Path.home()
    assert found.known_hosts == (Path("/my known"), home / "x", home / "b  c")


def test_known_hosts_files_that_are_switched_off_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("UserKnownHostsFile none\nGlobalKnownHostsFile none\n")
    assert SshConfigResolver(config=tmp_path / "config").resolve(NODE).known_hosts == ()


def test_the_inventory_goes_first(config: Path) -> None:
    ssh = Ssh(user="root", port=23, identity="/key", jump="none")
    found = SshConfigResolver(config=config).resolve(replace(NODE, ssh=ssh))
    assert (found.user, found.port, found.identity) == ("root", 23, Path("/key"))
    assert found.jump is None


def test_a_question_is_asked_once(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = SshConfigResolver(config=config)
    first = oracle.resolve(NODE)
    monkeypatch.setattr("subprocess.run", None)
    assert oracle.resolve(NODE) == first


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the hosts that `ssh -G` is asked about."""
    asked: list[str] = []
    run = subprocess.run

    def noted(argv: list[str], **options: object) -> object:
        asked.append(argv[-1])
        return run(argv, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("subprocess.run", noted)
    return asked


HOSTS = ("gpu1", "gpu2", "gpu22", "a", "b", "10.0.0.1", "gpu.1")
PATTERN = st.sampled_from(["*", "gpu*", "gpu?", "!gpu2", "gpu2", "a", "b", "10.0.0.*", "gpu.1"])
SETTING = st.sampled_from(
    [
        "HostName 10.0.0.1", "HostName a", "HostName = b", "HostName %h.lab", "Port 2200",
        "User ann", "IdentityFile ~/.ssh/%h", "IdentitiesOnly yes", "ProxyJump bastion",
        "HostKeyAlias alias", "UserKnownHostsFile ~/kh-%h", "ConnectTimeout 7",
        "ControlPath ~/%C", "# Match all", "CanonicalizeHostname no", 'User "bob"',
    ]
)  # fmt: skip
HEADER = st.one_of(
    st.lists(PATTERN, min_size=1, max_size=3).map(lambda words: "Host " + " ".join(words)),
    st.sampled_from(["host=gpu1", 'Host "gpu1"', "Match host gpu2", "Match all", "Host GPU1"]),
)


@example(lines=["Host gpu*", "HostName gpu1"], ports=[None] * len(HOSTS))
@settings(deadline=None, max_examples=20)
@given(
    lines=st.lists(st.one_of(HEADER, SETTING), max_size=8),
    ports=st.lists(st.sampled_from([None, 22, 2222]), min_size=len(HOSTS), max_size=len(HOSTS)),
)
def test_an_answer_for_another_host_is_the_one_that_openssh_gives(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ports: list[int | None]
) -> None:
    path = tmp_path_factory.mktemp("ssh") / "config"
    path.write_text("\n".join(lines) + "\n")
    together = SshConfigResolver(config=path)
    for name, port in zip(HOSTS, ports, strict=True):
        node = Node(host=name, name=name, ssh=Ssh(port=port))
        assert together.resolve(node) == SshConfigResolver(config=path).resolve(node)


def test_hosts_that_ssh_config_does_not_tell_apart_are_one_question(
    tmp_path: Path, questions: list[str]
) -> None:
    (tmp_path / "config").write_text(
        "Host gpu*\n  User ann\n  IdentityFile ~/.ssh/%h\n  ControlPath ~/%C\n"
        "Host login\n  HostName 10.0.0.9\nHost *\n  ConnectTimeout 7\n"
    )
    resolver = SshConfigResolver(config=tmp_path / "config")
    names = [f"gpu{i}" for i in range(9)]
    found = [resolver.resolve(Node(host=name, name=name, ssh=Ssh())) for name in names]
    assert [each.hostname for each in found] == names
    assert [each.identities[0].name for each in found] == names
    assert {each.user for each in found} == {"ann"}
    assert resolver.resolve(Node(host="login", name="login", ssh=Ssh())).hostname == "10.0.0.9"
    assert questions == ["gpu0", "login"]
    resolver.refresh()
    resolver.resolve(NODE)
    assert questions[2:] == ["gpu1"]


@pytest.mark.parametrize(
    "line",
    [
        'Match exec "true"', "UserKnownHostsFile ~/known-%h", "CanonicalizeHostname yes",
        "Include more", 'Host "gpu1"',
    ],
)  # fmt: skip
def test_where_any_host_may_differ_each_is_a_question(
    tmp_path: Path, questions: list[str], line: str
) -> None:
    (tmp_path / "more").write_text("Match all\n")
    (tmp_path / "config").write_text(line.replace("more", f"{tmp_path}/more") + "\n")
    resolver = SshConfigResolver(config=tmp_path / "config")
    for name in ("gpu1", "gpu2"):
        resolver.resolve(Node(host=name, name=name, ssh=Ssh()))
    assert questions == ["gpu1", "gpu2"]


def test_a_broken_ssh_config_is_told_in_openssh_words(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Nonsense yes\n")
    with pytest.raises(NodeError, match="Bad configuration option") as caught:
        SshConfigResolver(config=tmp_path / "config").resolve(NODE)
    assert caught.value.phase == "config"


def test_a_user_id_without_an_account_is_told_what_ssh_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho No user exists for uid 2000 >&2; exit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NodeError, match="No user exists for uid 2000") as caught:
        SshConfigResolver().resolve(NODE)
    assert "-v /etc/passwd:/etc/passwd:ro" in caught.value.hint


def test_without_an_ssh_program_the_inventory_is_enough(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    oracle = SshConfigResolver()
    found = [oracle.resolve(replace(NODE, ssh=Ssh(user="me"))) for _ in range(2)][1]
    assert (found.hostname, found.port, found.user) == ("gpu1", 22, "me")
    assert caplog.text.count("only the inventory is read") == 1


def test_a_host_that_looks_like_an_option() -> None:
    with pytest.raises(NodeError):
        SshConfigResolver().resolve(replace(NODE, host="-oProxyCommand=touch /tmp/x"))


def test_the_tokens_and_variables_of_identity_files_are_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSH's own debug output is the judge: `ssh -G` leaves them as they are written."""
    monkeypatch.setenv("KEYS", "/k")
    values = ["~/.ssh/keys/%r@%h", "${KEYS}%d/%n-%p", "/a%%b/%i-%u-%k-%L-%l", "/%C"]
    text = "Host gpu1\n  HostName 127.0.0.1\n  Port 2200\n  User me\n"
    text += "".join(f"  IdentityFile {value}\n" for value in values)
    (tmp_path / "config").write_text(text)

    found = SshConfigResolver(config=tmp_path / "config").resolve(NODE).identities

    said = subprocess.run(
        ["ssh", "-v", "-o", "ProxyCommand=true", "-F", str(tmp_path / "config"), "gpu1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    theirs = re.findall(r"identity file (.*) type", said)
    assert [str(path) for path in found] == [p for p in theirs if not p.endswith("-cert")]


def test_an_agent_that_ssh_config_names() -> None:
    assert endpoint(NODE, {"identityagent": ["none"]}).agent == ""
    assert endpoint(NODE, {"identityagent": ["/run/a"]}).agent == "/run/a"
    assert endpoint(NODE, {}).agent is None


def test_an_agent_in_a_variable_that_ssh_config_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_AGENT", "/run/b")
    assert endpoint(NODE, {"identityagent": ["$OTHER_AGENT"]}).agent == "/run/b"
    assert endpoint(NODE, {"identityagent": ["$NO_SUCH_AGENT"]}).agent == ""


def test_a_home_of_nobody_and_a_name_that_is_not_utf_8_stay_as_they_are_written() -> None:
    said = {"userknownhostsfile": ["~nobody-else/known"], "identityfile": ["/k/%C"]}
    found = endpoint(NODE, {**said, "hostname": ["h\udce9"]})
    assert found.known_hosts == (Path("~nobody-else/known"),)
    assert found.identities[0].parent == Path("/k")


@pytest.mark.parametrize("name", ["port", "connecttimeout"])
def test_a_program_that_only_is_called_ssh_is_told_apart(name: str) -> None:
    with pytest.raises(NodeError, match=f"{name} 'twenty', expected a number"):
        endpoint(NODE, {name: ["twenty"]})


RECORDED = b"""\
host gpu1
user root
hostname 10.0.0.1
port 2200
identitiesonly yes
connecttimeout none
hostkeyalias alias
identityagent SSH_AUTH_SOCK
proxyjump me@bastion:2222
proxycommand nc -X 5 %h %p
identityfile ~/.ssh/%r@%h
identityfile ${KEYS}/id
userknownhostsfile /root/.ssh/known_hosts ~nobody-else/known_hosts
globalknownhostsfile none
"""


@given(st.data())
def test_whatever_ssh_prints_there_is_an_endpoint_or_a_failure_that_says_so(
    data: st.DataObject,
) -> None:
    printed = data.draw(damaged(RECORDED) | st.binary())
    done = subprocess.CompletedProcess(["ssh"], 0, printed.decode("utf-8", "surrogateescape"), "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clusterctl.transport.ssh.ssh_config.subprocess.run", lambda *_, **__: done)
        try:
            found = SshConfigResolver().resolve(NODE)
        except NodeError:
            return
    assert 0 <= found.port < 10**9
    assert found.hostname
    assert found.target


@pytest.mark.parametrize(
    ("command", "server"),
    [
        ("ssh -W n1:22 gw", "ssh -W %h:22 gw"),
        ("exec /usr/bin/ssh -q gw nc n1 22", "exec /usr/bin/ssh -q gw nc %h 22"),
        ("nc -x proxy:1080 n1 22", "n1:22"),
        ("cloudflared access ssh --hostname n1", "n1:22"),
        ("sh -c 'aws ssm start-session --target n1'", "n1:22"),
        ("/usr/bin/sss_ssh_knownhostsproxy -p 22 n1", "n1:22"),
        (None, "n1:22"),
    ],
)
def test_a_gateway_counts_as_the_server_only_where_each_node_logs_in_there(
    command: str | None, server: str
) -> None:
    found = Endpoint(host="n1", hostname="n1", port=22, user="u", proxy_command=command)
    assert found.server == server
