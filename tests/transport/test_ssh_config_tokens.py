"""Tokens and variables in ssh_config's values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.inventory.addresses import own_user
from clusterctl.transport.ssh.ssh_config import Endpoint, expand_command, expand_path

TARGET = Endpoint(host="a", hostname="10.0.0.1", port=22, user="me")


def test_a_proxy_command_takes_its_own_tokens_only() -> None:
    assert expand_command("nc %h %p %% %r@%n %z %d", TARGET) == "nc 10.0.0.1 22 % me@a %z %d"


def test_a_value_is_expanded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/100%h/~")
    assert expand_path("${KEYS}/%h%", TARGET) == Path("/100%h/~/10.0.0.1%")
    assert expand_path('"~/%%h"', TARGET) == Path.home() / "%h"


def test_an_alias_stands_for_the_host_in_a_path() -> None:
    aliased = replace(TARGET, alias="gpu")
    paths = [expand_path("/k/%k-%n-%u", target).name for target in (TARGET, aliased)]
    assert paths == [f"a-a-{own_user()}", f"gpu-a-{own_user()}"]


def test_what_has_no_value_stays_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    assert expand_path("/k/${NOWHERE}%z%", TARGET) == Path("/k/${NOWHERE}%z%")
