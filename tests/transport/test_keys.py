"""The person's keys: read once, asked for once, offered in a sensible order."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.transport import keys
from clusterctl.transport.interface import Request
from clusterctl.transport.keys import EncryptedKey, Keyring, read_key
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh_config import Endpoint

from .conftest import Sshd, cluster_of, make_key


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
        key_name="h",
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
    while not Path(path).exists():
        assert process.poll() is None
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    yield path
    process.terminate()
    process.wait()


def add(key: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(key)], check=True)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_of_every_kind(tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "id", kind=kind)
    assert read_key(key).can_sign()


def test_an_encrypted_key_is_asked_for_once(tmp_path: Path) -> None:
    key = make_key(tmp_path / "id", passphrase="open sesame")
    with pytest.raises(EncryptedKey):
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
    offer = Keyring(ask=lambda _: "wrong").offer(endpoint(identity=key))
    assert offer.candidates == ()
    assert offer.skipped == (f"{key}: wrong passphrase",)


def test_something_that_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("hello\n")
    offer = Keyring().offer(endpoint(identity=tmp_path / "id"))
    assert "cannot be used here" in offer.skipped[0]


def test_the_order_of_offers(tmp_path: Path, agent: str) -> None:
    own, held, configured = (make_key(tmp_path / name) for name in ("own", "held", "configured"))
    add(held)
    offer = Keyring().offer(endpoint(identity=own, identities=(configured, tmp_path / "missing")))
    assert [c.origin for c in offer.candidates] == [str(own), "the agent", str(configured)]
    only = Keyring().offer(endpoint(identity=own, identities_only=True))
    assert [c.origin for c in only.candidates] == [str(own)]
    none = Keyring().offer(endpoint(identity=own, agent=""))
    assert [c.origin for c in none.candidates] == [str(own)]


def test_a_key_that_the_agent_holds_is_not_asked_for(tmp_path: Path, agent: str) -> None:
    key = make_key(tmp_path / "id")
    add(key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True)

    def ask(prompt: str) -> str:
        raise AssertionError(prompt)

    offer = Keyring(ask=ask).offer(endpoint(identity=key, identities_only=True))
    assert [c.origin for c in offer.candidates] == [f"{key} (in the agent)"]


def test_many_connections_sign_by_one_agent(sshd: Sshd, agent: str) -> None:
    add(sshd.identity)
    sshd.identity.unlink()
    nodes = [sshd.node(f"n{i}") for i in range(10)]
    with Pool(cluster_of(*nodes)) as pool:
        replies = list(pool.call({n.name: Request(op="hello", args={}) for n in nodes}))
    assert {reply.state for reply in replies} == {"ok"}, replies


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
            found.extend(c.origin for c in Keyring().offer(endpoint(identity=key)).candidates)

        thread = threading.Thread(target=offer, daemon=True)
        thread.start()
        thread.join(10)
    assert found == [str(key)]


def test_a_key_that_may_not_even_be_looked_for_is_left_out(tmp_path: Path) -> None:
    own = make_key(tmp_path / "own")
    # Too long a name, since root may look everywhere else.
    offer = Keyring().offer(endpoint(identities=(tmp_path / ("x" * 300), own)))
    assert [c.origin for c in offer.candidates] == [str(own)]


def test_a_person_who_gives_no_passphrase(tmp_path: Path) -> None:
    key = make_key(tmp_path / "id", passphrase="open sesame")

    def ask(_prompt: str) -> str:
        raise EOFError

    offer = Keyring(ask=ask).offer(endpoint(identity=key))
    assert offer.skipped == (f"{key}: no passphrase was given",)


def test_an_agent_that_is_gone_is_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nothing"))
    assert Keyring().offer(endpoint()).candidates == ()
