"""The person's keys: read once, asked for once, offered in a sensible order."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from clusterctl.transport.interface import Reply, Request
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import keys
from clusterctl.transport.ssh.keys import Keyring, Offer, read_key
from clusterctl.transport.ssh.ssh_config import Endpoint
from tests.failed_reply import error_of
from tests.sshd_servers import USER, Sshd, cluster_of, hello, make_key, opened


def endpoint(
    *,
    identity: Path | None = None,
    identities: tuple[Path, ...] = (),
    identities_only: bool = False,
    agent: str | None = None,
) -> Endpoint:
    return Endpoint(
        host="h",
        hostname="h",
        port=22,
        user="u",
        identity=identity,
        identities=identities,
        identities_only=identities_only,
        agent=agent,
    )


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run an ssh-agent of our own."""
    path = str(tmp_path / "agent")
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    # A connection, not the file: between its bind and its listen, the agent refuses.
    with socket.socket(socket.AF_UNIX) as probe:
        while probe.connect_ex(path):
            assert process.poll() is None
            time.sleep(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    yield path
    process.terminate()
    process.wait()


def offered(endpoint: Endpoint, *, ask: Callable[[str], str] | None = None) -> Offer:
    """Return what a keyring of its own offers."""
    keyring = Keyring(ask=ask)
    try:
        return keyring.offer(endpoint)
    finally:
        keyring.close()


def add(key: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(key)], check=True)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_of_every_kind(tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "id", kind=kind)
    assert read_key(key).can_sign()


def test_an_encrypted_key_is_asked_for_once(tmp_path: Path) -> None:
    key = make_key(tmp_path / "id", passphrase="open sesame")
    with pytest.raises(paramiko.PasswordRequiredException):
        read_key(key)
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return "wrong" if len(asked) == 1 else "open sesame"

    keyring = Keyring(ask=ask)
    for _ in range(3):
        offer = keyring.offer(endpoint(identity=key))
        assert [c.origin for c in offer.candidates] == [str(key)]
    assert len(asked) == 2


def test_a_passphrase_that_stays_wrong(tmp_path: Path) -> None:
    key = make_key(tmp_path / "id", passphrase="open sesame")
    offer = offered(endpoint(identity=key), ask=lambda _: "wrong")
    assert offer.candidates == ()
    assert offer.skipped == (f"{key}: wrong passphrase",)


def test_something_that_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("hello\n")
    offer = offered(endpoint(identity=tmp_path / "id"))
    assert "cannot be used here" in offer.skipped[0]


def test_the_order_of_offers(tmp_path: Path, agent: str) -> None:
    own, held, configured = (make_key(tmp_path / name) for name in ("own", "held", "configured"))
    add(held)
    offer = offered(endpoint(identity=own, identities=(configured, tmp_path / "missing")))
    assert [c.origin for c in offer.candidates] == [str(own), "the agent", str(configured)]
    only = offered(endpoint(identity=own, identities_only=True))
    assert [c.origin for c in only.candidates] == [str(own)]
    none = offered(endpoint(identity=own, agent=""))
    assert [c.origin for c in none.candidates] == [str(own)]


def test_a_full_agents_key_that_ssh_config_names_is_offered_first(
    make_sshd: Callable[..., Sshd], tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server hangs up after six keys; the agent holds seven and the last one is the right."""
    server = make_sshd("MaxAuthTries 6")
    for number in range(6):
        add(make_key(tmp_path / f"other{number}"))
    add(server.identity)
    server.identity.rename(tmp_path / "elsewhere")
    use_config(tmp_path, monkeypatch, f"IdentityFile {server.identity}\n")
    reply = opened(server.node("n", identity=None))
    assert reply.ok, reply

    use_config(tmp_path, monkeypatch, "")
    reply = opened(server.node("n", identity=None))
    assert (reply.state, error_of(reply).phase) == ("auth", "auth")
    assert "hung up (Too many authentication failures) after the agent" in error_of(reply).message
    assert "1 more not tried" in error_of(reply).message
    assert "identity: PATH" in error_of(reply).hint


def test_six_keys_may_be_offered_to_a_server_with_default_limits(
    make_sshd: Callable[..., Sshd], tmp_path: Path, agent: str
) -> None:
    server = make_sshd()
    for number in range(5):
        add(make_key(tmp_path / f"other{number}"))
    add(server.identity)
    reply = opened(server.node("n", identity=None))
    assert reply.ok, reply


def use_config(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let `ssh -G` read this as the person's ssh_config."""
    (folder / "config").write_text(text)
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    script = bin_folder / "ssh"
    script.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
    script.chmod(0o755)
    if str(bin_folder) not in os.environ["PATH"].split(os.pathsep):
        monkeypatch.setenv("PATH", str(bin_folder), prepend=os.pathsep)


def test_files_that_ssh_config_names_and_that_are_missing_are_reported(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "keys"
    use_config(tmp_path, monkeypatch, f"IdentityFile {missing}/%r@%h\n")
    reply = opened(sshd.node("n", identity=None))
    assert reply.state == "auth"
    assert "no key to offer (no ssh-agent)" in error_of(reply).message
    assert f"{missing}/{USER}@127.0.0.1: No such file or directory" in error_of(reply).message
    assert "set `ssh: {identity: PATH}` in hosts.yaml" in error_of(reply).hint


def test_a_key_file_with_tokens_in_its_name_opens(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd.identity.rename(tmp_path / f"{USER}@127.0.0.1")
    monkeypatch.setenv("MY_KEYS", str(tmp_path))
    use_config(tmp_path, monkeypatch, "IdentityFile ${MY_KEYS}/%r@%h\n")
    reply = opened(sshd.node("n", identity=None))
    assert reply.ok, reply


def test_no_key_anywhere(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "".join(f"IdentityFile {tmp_path}/home/.ssh/id_{kind}\n" for kind in ("rsa", "xmss"))
    use_config(tmp_path, monkeypatch, names)
    reply = opened(sshd.node("n", identity=None))
    assert error_of(reply).message.endswith(": no key to offer (no ssh-agent, none in ~/.ssh)")


def test_an_agent_that_does_not_answer_is_named(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nothing"))
    use_config(tmp_path, monkeypatch, f"IdentityFile {tmp_path}/id_rsa\n")
    reply = opened(sshd.node("n", identity=None))
    assert (
        f"the ssh-agent at {tmp_path}/nothing does not answer: No such file"
        in error_of(reply).message
    )


def test_a_key_that_the_agent_holds_is_not_asked_for(tmp_path: Path, agent: str) -> None:
    key = make_key(tmp_path / "id")
    add(key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True)

    def ask(prompt: str) -> str:
        raise AssertionError(prompt)

    offer = offered(endpoint(identity=key, identities_only=True), ask=ask)
    assert [c.origin for c in offer.candidates] == [f"{key} (in the agent)"]


def test_many_connections_sign_by_one_agent(sshd: Sshd, agent: str) -> None:
    add(sshd.identity)
    sshd.identity.unlink()
    nodes = [sshd.node(f"n{i}") for i in range(10)]
    with Pool(cluster_of(*nodes)) as pool:
        replies = list(pool.call({n.name: Request(op="hello", args={}) for n in nodes}))
    assert {reply.state for reply in replies} == {"ok"}, replies


def test_a_key_that_comes_back_to_the_agent_is_offered_to_a_stream_that_broke(
    sshd: Sshd, agent: str
) -> None:
    """As where a laptop slept until the agent's keys had expired."""
    add(sshd.identity)
    elsewhere = sshd.identity.rename(sshd.identity.with_name("moved"))
    request = Request(op="echo", args={})
    states = []
    with Pool(cluster_of(sshd.node("n"))) as pool:  # noqa: SIM117  (so that lines stay short)
        with pool.following({"n": request}, tick=30) as stream:
            for item in stream:
                assert item is not None
                message = item[1]
                if not isinstance(message, Reply):
                    states.append("ok")
                    if states.count("ok") == 2:
                        break
                    subprocess.run(["ssh-add", "-q", "-D"], check=True, capture_output=True)
                    for pid in sshd.sessions():
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    continue
                states.append(message.state)
                if states.count("auth") == 2:
                    add(elsewhere)
                stream.add("n", request)
    assert [state for state in states if state != "lost"] == ["ok", "auth", "auth", "ok"]


def sign(folder: Path, key: Path, name: str) -> Path:
    """Return a certificate for a key, by an authority of the folder, under a name of its own."""
    subprocess.run(
        [
            *("ssh-keygen", "-q", "-s", str(folder / "ca"), "-I", "t", "-n", USER),
            str(key.with_name(key.name + ".pub")),
        ],
        check=True,
        capture_output=True,
    )
    return key.with_name(f"{key.name}-cert.pub").rename(folder / name)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize("held", ["file", "agent"])
def test_a_certificate_under_another_name_opens(
    make_sshd: Callable[..., Sshd],
    tmp_path: Path,
    ssh_config: Path,
    agent: str,
    kind: str,
    held: str,
) -> None:
    make_key(tmp_path / "ca")
    server = make_sshd(f"TrustedUserCAKeys {tmp_path}/ca.pub", "LogLevel VERBOSE")
    key = make_key(tmp_path / "signed-key", kind=kind)
    sign(tmp_path, key, "of-127.0.0.1.pub")
    if held == "agent":
        add(key)
        key.unlink()
    ssh_config.write_text(f"CertificateFile {tmp_path}/of-%h.pub\nIdentityFile {key}\n")
    node = server.node("n", identity=None)
    reply = hello(node)
    assert reply.ok, reply
    assert "-CERT" in server.log


def test_a_certificate_of_another_host_stays_off_this_one(tmp_path: Path) -> None:
    """The keys are shared by all connections; what ssh_config adds for one host is its own."""
    key = make_key(tmp_path / "id")
    make_key(tmp_path / "ca")
    certificate = sign(tmp_path, key, "c.pub")
    keyring = Keyring()
    plain = endpoint(identities=(key,))
    first = keyring.offer(replace(plain, certificates=(certificate,)))
    assert [one.origin for one in first.candidates] == [f"{certificate} ({key})", str(key)]
    second = keyring.offer(plain)
    assert [one.key.public_blob for one in second.candidates] == [None]


@pytest.mark.parametrize("fault", ["missing", "key", "other", "text", "cut"])
def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path, fault: str) -> None:
    key, other = make_key(tmp_path / "id"), make_key(tmp_path / "other")
    make_key(tmp_path / "ca")
    path = tmp_path / "c.pub"
    if fault == "key":
        shutil.copy(tmp_path / "id.pub", path)
    elif fault == "other":
        sign(tmp_path, other, "c.pub")
    elif fault == "text":
        path.write_bytes(b"\xff\n")
    elif fault == "cut":
        kind, encoded, *_ = sign(tmp_path, key, "c.pub").read_text().split()
        path.write_text(f"{kind} {encoded[:48]}")
    offer = offered(replace(endpoint(identities=(key,)), certificates=(path,)))
    assert [one.origin for one in offer.candidates] == [str(key)]
    assert [words.partition(":")[0] for words in offer.skipped] == [str(path)]


def test_an_agent_that_never_answers_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a forwarded one behind a connection that is dead."""
    monkeypatch.setattr(keys, "AGENT_SECONDS", 0.2)
    key = make_key(tmp_path / "id")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        found: list[str] = []

        def offer() -> None:
            found.extend(c.origin for c in offered(endpoint(identity=key)).candidates)

        thread = threading.Thread(target=offer, daemon=True)
        thread.start()
        thread.join(10)
    assert found == [str(key)]


def test_a_key_that_may_not_even_be_looked_for_is_left_out(tmp_path: Path) -> None:
    own = make_key(tmp_path / "own")
    # Too long a name, since root may look everywhere else.
    offer = offered(endpoint(identities=(tmp_path / ("x" * 300), own)))
    assert [c.origin for c in offer.candidates] == [str(own)]


def test_who_has_another_key_is_not_asked_for_every_passphrase(tmp_path: Path) -> None:
    own = make_key(tmp_path / "own")
    locked = [make_key(tmp_path / f"locked{n}", passphrase="open sesame") for n in range(2)]
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return "open sesame"

    offer = offered(endpoint(identities=(own, *locked)), ask=ask)
    assert [c.origin for c in offer.candidates] == [str(own)]
    assert asked == []
    assert len(offer.skipped) == 2
    offer = offered(endpoint(identities=tuple(locked)), ask=ask)
    assert [c.origin for c in offer.candidates] == [str(locked[0])]
    assert len(asked) == 1


def test_a_person_who_gives_no_passphrase(tmp_path: Path) -> None:
    key = make_key(tmp_path / "id", passphrase="open sesame")

    def ask(_prompt: str) -> str:
        raise EOFError

    offer = offered(endpoint(identity=key), ask=ask)
    assert offer.skipped == (f"{key}: no passphrase was given",)


def test_an_agent_that_is_gone_is_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nothing"))
    assert offered(endpoint()).candidates == ()
