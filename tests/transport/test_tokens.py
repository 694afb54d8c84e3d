"""Tokens and variables in ssh_config's values."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.transport.tokens import Target, expand_command, expand_path

TARGET = Target(host="a", hostname="10.0.0.1", port=22, user="me")


def test_a_proxy_command_takes_its_own_tokens_only() -> None:
    assert expand_command("nc %h %p %% %r@%n %z %d", TARGET) == "nc 10.0.0.1 22 % me@a %z %d"


def test_a_value_is_expanded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/100%h/~")
    assert expand_path("${KEYS}/%h%", TARGET) == Path("/100%h/~/10.0.0.1%")
    assert expand_path('"~/%%h"', TARGET) == Path.home() / "%h"
