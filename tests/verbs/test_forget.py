"""A host's key is forgotten under every name that it may be recorded by."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import ClusterError
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.transport.ssh.host_keys import own_file
from clusterctl.transport.ssh.ssh_config import Endpoint, SshConfigResolver
from clusterctl.verbs.forget import forget_nodes

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILUYsMaJ+ao3FLjKSWPBaG1bJcTHI9WOzRi0h2l0OXqb"


def test_an_alias_is_forgotten_as_openssh_and_as_we_record_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    user_file = tmp_path / "known_hosts"
    user_file.write_text(f"alias {KEY}\n")
    endpoint = Endpoint(
        host="gpu1",
        hostname="10.0.0.1",
        port=2200,
        user="ada",
        alias="alias",
        known_hosts=(user_file,),
    )
    monkeypatch.setattr(SshConfigResolver, "resolve", lambda _self, _node: endpoint)
    own = own_file("lab")
    own.parent.mkdir(parents=True)
    own.write_text(f"alias {KEY}\n[alias]:2200 {KEY}\n10.0.0.1 {KEY}\n")
    node = Node(host="gpu1", name="gpu1", ssh=Ssh())

    (forgotten,) = forget_nodes(Cluster(name="lab", nodes=(node,)), (node,))

    assert (forgotten.name, forgotten.dropped) == ("[alias]:2200", 2)
    assert own.read_text() == f"10.0.0.1 {KEY}\n"
    assert forgotten.elsewhere == (f"{user_file}:1",)


def test_keys_in_a_folder_that_others_may_write_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    own = own_file("lab")
    own.parent.mkdir(parents=True)
    own.write_text(f"gpu1 {KEY}\n")
    own.parent.chmod(0o777)
    node = Node(host="gpu1", name="gpu1", ssh=Ssh())
    with pytest.raises(ClusterError, match="is not a folder of this user alone") as refused:
        forget_nodes(Cluster(name="lab", nodes=(node,)), (node,))
    assert refused.value.hint == f"chmod -R go-w {own.parent}"
    assert own.read_text() == f"gpu1 {KEY}\n"
