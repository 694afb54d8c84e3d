"""What a project needs, from each kind of file, and what cannot go to a node."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import ClusterError, UsageError
from clusterctl.verbs.setup.requirements import Requirements, download, platforms, read_requirements
from tests.verbs.setup.wheelhouse import UV, write_wheel

PROJECT = """
[project]
name = "job"
version = "1"
requires-python = ">=3.11"
dependencies = ["alpha>=1"]
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_included_files_take_the_place_of_their_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "requirements.txt": "\ufefftorch==2.8.0  # pinned\r\n-r inner/more.txt\n\n# end\n",
            "inner/more.txt": "--extra-index-url https://host/simple\npeft \\\n  >=0.17\n",
        },
    )
    found = read_requirements(None, tmp_path)
    assert found.source == tmp_path / "requirements.txt"
    assert found.text.split("\n") == [
        "torch==2.8.0", "--extra-index-url https://host/simple", "peft    >=0.17", "",
    ]  # fmt: skip


def test_a_project_names_its_dependencies(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": PROJECT})
    assert read_requirements(None, tmp_path).text == "alpha>=1\n"


def test_a_lock_gives_exact_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    for version in ("1.0", "1.1"):
        write_wheel(wheels, "alpha", version)
    write(tmp_path, {"pyproject.toml": PROJECT})
    monkeypatch.setenv("PATH", str(UV.parent), prepend=":")
    argv = [str(UV), "lock", "--quiet", "--no-index", "--find-links", str(wheels)]
    subprocess.run(argv, cwd=tmp_path, check=True)
    found = read_requirements(None, tmp_path)
    assert found.source.name == "uv.lock"
    lines = [line.strip() for line in found.text.splitlines()]
    assert "alpha==1.1" in lines
    assert not [line for line in lines if line.startswith(("job", "-e"))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-e .\n", ":1: the nodes do not have ."),
        ("numpy\n./wheels/mine.whl\n", ":2: the nodes do not have ./wheels/mine.whl"),
        ("mine @ file:///home/me/mine\n", ":1: the nodes do not have file:///home/me/mine"),
        ("-r requirements.txt\n", ":1: "),
        ("-c limits.txt\n", ":1: constraints are not supported: -c limits.txt"),
        ("-r none.txt\n", ":1: -r none.txt: there is no file "),
    ],
)
def test_what_only_this_machine_has_is_named_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_requirements(None, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/requirements.txt")
    assert said in str(caught.value)


def test_an_included_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n-r inner.txt\n")
    (tmp_path / "inner.txt").write_bytes(b"\xff\xfe\xfa")
    where = f"{tmp_path}/requirements.txt:2: {tmp_path}/inner.txt: expected a file of requirements"
    with pytest.raises(UsageError, match=re.escape(where)):
        read_requirements(None, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("pyproject.toml", "[project]\nname = 'x'\n", "expected a list of dependencies"),
        ("pyproject.toml", "[project\n", "Expected"),
        ("other.txt", "numpy\n", "found none of them"),
    ],
)
def test_a_folder_without_requirements_is_a_usage_error(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        read_requirements(None, tmp_path)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "requirements.txt").write_text(text, errors="ignore")
        with contextlib.suppress(UsageError):
            read_requirements(None, Path(folder))


def test_wheels_for_older_systems_run_on_newer_ones() -> None:
    assert platforms("x86_64", "2.28")[0] == "manylinux_2_28_x86_64"
    assert "manylinux_2_17_aarch64" in platforms("aarch64", "2.36")
    assert "manylinux_2_34_x86_64" not in platforms("x86_64", "2.31")
    assert platforms("x86_64", "2." + "9" * 9999)[0] == "manylinux_2_17_x86_64"
    assert platforms("x86_64", "") == ("musllinux_1_2_x86_64", "musllinux_1_1_x86_64")


def test_a_node_with_musl_gets_wheels_for_musl(tmp_path: Path) -> None:
    for tag in ("manylinux_2_17_x86_64", "musllinux_1_2_x86_64"):
        write_wheel(tmp_path / "wheels", "alpha", "1.0", tag=f"cp311-cp311-{tag}")
    text = f"--no-index\n--find-links {tmp_path / 'wheels'}\nalpha\n"
    requirements = Requirements(source=tmp_path / "requirements.txt", text=text)
    for libc, tag in (("", "musllinux_1_2"), ("2.36", "manylinux_2_17")):
        folder = tmp_path / tag
        folder.mkdir()
        (found,) = download(requirements, "3.11", platforms("x86_64", libc), folder)
        assert found.name == f"alpha-1.0-cp311-cp311-{tag}_x86_64.whl"


def test_an_index_that_does_not_answer_is_told_apart_from_a_package_without_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("PIP_RETRIES", "1")
    text = "--index-url http://127.0.0.1:1/simple\nlab-thing\n"
    requirements = Requirements(source=tmp_path / "requirements.txt", text=text)
    with pytest.raises(ClusterError, match="cannot download wheels") as refused:
        download(requirements, "3.11", ("manylinux2014_x86_64",), tmp_path)
    assert "Retrying" not in str(refused.value)
    assert "PIP_INDEX_URL" in (refused.value.hint or "")
