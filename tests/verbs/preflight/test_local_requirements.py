"""What the folder's requirements.txt names is known before a sync brings it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.verbs.preflight.source_folder import local_requirements


def test_names_and_plain_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("wandb\n")
    (tmp_path / "requirements.txt").write_text(
        f"--index-url https://example.org\n# one\na!2\na{100 * '!'};\n"
        "Torch >= 2.4, <3  # two\nflash_attn==2.8.*\n"
        "accelerate[rich]~=1.15\n-r more.txt\n"
        'triton>=3; sys_platform == "win32"\npkg @ https://example.org/pkg.whl\n'
    )
    assert local_requirements(tmp_path) == (
        ("torch", ">=2.4,<3"), ("flash-attn", "==2.8.*"), ("accelerate", "~=1.15"), ("wandb", ""),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["-e .\n", "-c limits.txt\n", "\xff", "-r nowhere.txt\n"])
def test_of_a_file_that_setup_refuses_nothing_is_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "requirements.txt").write_bytes(("torch\n" + text).encode("latin-1"))
    assert local_requirements(tmp_path) == ()


def test_a_lock_is_what_setup_installs(tmp_path: Path) -> None:
    assert local_requirements(tmp_path) == ()
    (tmp_path / "requirements.txt").write_text("torch\n")
    (tmp_path / "uv.lock").touch()
    assert local_requirements(tmp_path) == ()
