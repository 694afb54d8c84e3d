"""Patterns of ssh_config as hosts of `init`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.verbs.init.draft import expand_patterns

CONFIG = """\
Include conf.d/*
Host *
  User nobody
Host gpu01 GPU02 "gpu03" !gpu04 gpu1?
  HostName 10.0.0.1
host=login
Match host gpu09
Host "unclosed
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh" / "conf.d").mkdir(parents=True)
    (tmp_path / ".ssh" / "config").write_text(CONFIG)
    (tmp_path / ".ssh" / "conf.d" / "lab").write_text("Host gpu-lab\nInclude ~/.ssh/config\n")
    return tmp_path


def test_a_pattern_stands_for_the_hosts_that_ssh_config_names() -> None:
    assert expand_patterns(["gpu*"]) == ["gpu-lab", "gpu01", "GPU02", "gpu03"]
    assert expand_patterns(["ada@gpu0?:2222", "x"]) == [
        "ada@gpu01:2222", "ada@GPU02:2222", "ada@gpu03:2222", "x",
    ]  # fmt: skip
    assert expand_patterns(["*"]) == ["gpu-lab", "gpu01", "GPU02", "gpu03", "login"]


def test_what_is_no_pattern_stays_and_reads_no_file(home: Path) -> None:
    (home / ".ssh" / "config").unlink()
    words = ["gpu[01-04]", "root@10.0.0.9:2222", "[fd00::5]:22"]
    assert expand_patterns(words) == words


def test_a_pattern_that_fits_none_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        expand_patterns(["tpu*"])
    assert str(caught.value) == (
        "tpu*: expected a pattern that fits a Host of ~/.ssh/config, found 5 of them and none that"
        " fits"
    )
