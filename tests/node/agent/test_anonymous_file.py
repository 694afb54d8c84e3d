"""Nameless files, also for a Python that lacks `memfd_create`, as conda's does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.node.agent import anonymous_file
from clusterctl.node.peer_link.tls_channel import server_context
from clusterctl.node.run.processes import environment
from clusterctl.plan.certificate import make_identity
from tests.node.conftest import Run


@pytest.fixture(params=["memfd_create", "without"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.delattr(os, "memfd_create")


@pytest.mark.usefixtures("either")
def test_the_file_has_no_name_and_is_ours_alone() -> None:
    before = set(Path(anonymous_file.SHARED_MEMORY).iterdir())
    descriptor = anonymous_file.anonymous_file("x")
    try:
        os.write(descriptor, b"secret")
        assert os.pread(descriptor, 100, 0) == b"secret"
        assert not os.get_inheritable(descriptor)
        assert os.fstat(descriptor).st_nlink == 0
        new = set(Path(anonymous_file.SHARED_MEMORY).iterdir()) - before
        assert not [path for path in new if path.name.startswith(f"clusterctl-{os.getpid()}")]
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("either")
def test_the_links_key_and_env_init_need_no_memfd() -> None:
    identity = make_identity("lab-1")
    assert server_context(identity.certificate, identity.key).get_ca_certs() == []
    env = environment.run_env_init("echo noise; export FOUND=yes", {b"PATH": b"/usr/bin:/bin"})
    assert env[b"FOUND"] == b"yes"


LOADED = """
import os
maps = open("/proc/%d/maps" % os.getppid()).read()
print("ssl" if "_ssl" in maps else "no ssl")
"""


@pytest.mark.parametrize(("nodes", "loaded"), [(1, b"no ssl\n"), (2, b"ssl\n")])
def test_a_run_on_one_node_needs_no_ssl(
    make_run: Callable[..., Run], nodes: int, loaded: bytes
) -> None:
    run = make_run(LOADED, nodes=nodes).start()
    run.ended()
    assert run.log(0) == loaded
