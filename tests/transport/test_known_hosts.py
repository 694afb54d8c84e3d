"""known_hosts is read with OpenSSH's meaning and a person's patience, and written whole."""

from __future__ import annotations

import base64
import logging
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import NodeError
from clusterctl.transport.ssh.host_keys import HostKeyVerifier
from clusterctl.transport.ssh.known_hosts import (
    KnownHosts,
    fingerprint,
    forget,
    known_name,
    parse_known_hosts,
    record,
)
from clusterctl.transport.ssh.ssh_config import Endpoint
from tests.sshd_servers import make_key


def blob(content: bytes, key_type: str = "ssh-ed25519") -> bytes:
    """Return the bytes of a key that says its own type, as all keys do."""
    return len(key_type).to_bytes(4) + key_type.encode() + content


def line(hosts: str, content: bytes = b"k", key_type: str = "ssh-ed25519") -> str:
    return f"{hosts} {key_type} {base64.b64encode(blob(content, key_type)).decode()}"


def known(*lines: str) -> KnownHosts:
    found = KnownHosts()
    for item in parse_known_hosts("\n".join(lines), "file"):
        found.add(item)
    return found


def test_names_lists_wildcards_and_negations() -> None:
    hosts = known(
        line("a,10.0.0.1", b"1"), line("*.cl,!bad.cl", b"2"), line("n?de", b"3"), line("A.B", b"4")
    )
    assert hosts.judge("a", blob(b"1")).verdict == "known"
    assert hosts.judge("10.0.0.1", blob(b"1")).verdict == "known"
    assert hosts.judge("x.cl", blob(b"2")).verdict == "known"
    assert hosts.judge("bad.cl", blob(b"2")).verdict == "unknown"
    assert hosts.judge("node", blob(b"3")).verdict == "known"
    assert hosts.judge("a.b", blob(b"4")).verdict == "known"
    assert hosts.judge("other", blob(b"1")).verdict == "unknown"


def test_another_port_is_another_host() -> None:
    hosts = known(line("h", b"1"), line("[h]:2222", b"2"))
    assert hosts.judge(known_name("h", 22), blob(b"1")).verdict == "known"
    assert hosts.judge(known_name("h", 2222), blob(b"2")).verdict == "known"
    assert hosts.judge(known_name("h", 2222), blob(b"1")).verdict == "changed"


def test_a_changed_key_names_its_line() -> None:
    judged = known("# comment", "", line("h", b"1")).judge("h", blob(b"2"))
    assert (judged.verdict, judged.where) == ("changed", "file:3")


def test_another_type_of_key_counts_as_changed() -> None:
    hosts = known(line("h", b"1", "ssh-rsa"))
    assert hosts.judge("h", blob(b"2")).verdict == "changed"
    assert hosts.key_types("h") == ("ssh-rsa",)


def test_a_revoked_key_is_refused_even_where_it_is_known() -> None:
    hosts = known(line("h", b"1"), "@revoked " + line("*", b"1"))
    assert hosts.judge("h", blob(b"1")).verdict == "revoked"


def test_an_authority_vouches_for_nothing_here() -> None:
    hosts = known("@cert-authority " + line("*.cl", b"1"))
    assert hosts.judge("a.cl", blob(b"1")).verdict == "unknown"
    assert hosts.has_authority("a.cl")
    assert not hosts.has_authority("a.other")


def test_a_line_that_cannot_be_read_is_skipped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    bad = [
        "h ssh-ed25519 not-base64!",
        "h ssh-ed25519",
        "h",
        "@unknown " + line("h", b"1"),
        "|1|broken " + line("", b"1"),
        "h ssh-rsa " + base64.b64encode(blob(b"1")).decode(),
    ]
    with caplog.at_level(logging.WARNING):
        hosts = known(*bad, line("h", b"good"))
    assert hosts.judge("h", blob(b"good")).verdict == "known"
    assert [r.args[0] for r in caplog.records if isinstance(r.args, tuple)] == [
        f"file:{number}" for number in range(1, 7)
    ]


def test_a_file_that_cannot_be_read_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "good").write_text(line("h", b"1"))
    with caplog.at_level(logging.WARNING):
        hosts = KnownHosts.load([tmp_path / "folder", tmp_path / "missing", tmp_path / "good"])
    assert hosts.judge("h", blob(b"1")).verdict == "known"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/folder: cannot be read: Is a directory"
    ]


def test_tabs_and_many_spaces_and_comments_are_fine() -> None:
    key = base64.b64encode(blob(b"1")).decode()
    assert known(f"  h \t ssh-ed25519   {key}  me@home").judge("h", blob(b"1")).verdict == "known"


def test_hashed_names_as_ssh_keygen_makes_them(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    kind, encoded, *_ = key.with_suffix(".pub").read_text().split()
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu1 {kind} {encoded}\n[gpu1]:2222 {kind} {encoded}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "gpu1" not in path.read_text()
    hosts = KnownHosts.load([path, tmp_path / "missing"])
    for name in ("gpu1", "[gpu1]:2222", "GPU1"):
        assert hosts.judge(name, base64.b64decode(encoded)).verdict == "known"
    assert hosts.judge("gpu2", base64.b64decode(encoded)).verdict == "unknown"
    assert forget(path, "gpu1") == 1
    assert len(path.read_text().splitlines()) == 1


def test_the_fingerprint_is_the_one_that_ssh_keygen_shows(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(key)], check=True, capture_output=True, text=True
    )
    encoded = key.with_suffix(".pub").read_text().split()[1]
    assert fingerprint(base64.b64decode(encoded)) == shown.stdout.split()[1]


def test_ssh_keygen_finds_what_was_recorded(tmp_path: Path) -> None:
    encoded = make_key(tmp_path / "key").with_suffix(".pub").read_text().split()[1]
    path = tmp_path / "new" / "known_hosts"
    record(path, "[h]:2222", "ssh-ed25519", base64.b64decode(encoded))
    found = subprocess.run(
        ["ssh-keygen", "-F", "[h]:2222", "-f", str(path)], check=False, capture_output=True
    )
    assert found.returncode == 0


def test_an_alias_is_recorded_without_its_port_by_openssh(tmp_path: Path, own_state: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line("gpu1-alias", b"right"))
    endpoint = Endpoint(
        host="gpu1",
        hostname="10.0.0.1",
        port=2222,
        user="u",
        alias="gpu1-alias",
        known_hosts=(path,),
    )
    trust = HostKeyVerifier("lab", accept_new=True)

    trust.check(endpoint, "ssh-ed25519", blob(b"right"))

    assert trust.key_types(endpoint) == ("ssh-ed25519",)
    with pytest.raises(NodeError, match="is not the recorded one"):
        trust.check(endpoint, "ssh-ed25519", blob(b"wrong"))
    assert not own_state.exists()
    # Where there is no alias the name without its port is another server's.
    other = replace(endpoint, hostname="gpu1-alias")
    with pytest.raises(NodeError, match="is not known"):
        HostKeyVerifier("lab", accept_new=False).check(other, "ssh-ed25519", blob(b"right"))


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line("first"))  # a last line without its newline
    threads = [
        threading.Thread(target=record, args=(path, f"h{i}", "ssh-ed25519", blob(b"%d" % i)))
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hosts = KnownHosts.load([path])
    assert hosts.judge("first", blob(b"k")).verdict == "known"
    for i in range(20):
        assert hosts.judge(f"h{i}", blob(b"%d" % i)).verdict == "known"


def test_recording_twice_is_one_line_and_forgetting_takes_it_out(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    for _ in range(2):
        record(path, "h", "ssh-ed25519", blob(b"1"))
    record(path, "other", "ssh-ed25519", blob(b"2"))
    assert forget(path, "h") == 1
    assert forget(path, "h") == 0
    assert KnownHosts.load([path]).judge("other", blob(b"2")).verdict == "known"
    assert forget(tmp_path / "missing", "h") == 0
    assert path.read_text() == f"{line('other', b'2')}\n"


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    parse_known_hosts(text, "file")


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z0-9.*?!\[\]:,|-]{1,12}", fullmatch=True),
            st.binary(min_size=1, max_size=4),
        ),
        max_size=8,
    ),
    st.from_regex(r"[a-z0-9.]{1,6}", fullmatch=True),
    st.binary(min_size=1, max_size=4),
)
def test_a_key_is_known_only_where_a_line_about_the_host_has_it(
    lines: list[tuple[str, bytes]], host: str, content: bytes
) -> None:
    text = "\n".join(line(hosts, key) for hosts, key in lines)
    parsed = parse_known_hosts(text, "file")
    hosts = KnownHosts()
    for item in parsed:
        hosts.add(item)
    about = [item.blob for item in parsed if item.matches(host)]
    expected = "unknown" if not about else "known" if blob(content) in about else "changed"
    assert hosts.judge(host, blob(content)).verdict == expected
