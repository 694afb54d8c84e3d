"""What is told of the job's interpreter, against what the interpreter itself says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from clusterctl.facts.request import FactRequest
from clusterctl.facts.software.python import (
    ForeignImport,
    Python,
    parse_job_environment,
    parse_python,
)
from clusterctl.node.probe import job_interpreter as module
from clusterctl.node.probe.job_interpreter import PACKAGES, describe, installed, torch_build
from tests.facts.answering import answers


def test_the_versions_are_those_of_importlib_metadata() -> None:
    expected = {}
    for name in PACKAGES:
        try:
            expected[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue

    assert installed() == expected


def described(pairs: Sequence[str]) -> dict[str, str]:
    """Read the pairs, without the packages that a `.pth` file of this environment brings."""
    found = dict(zip(pairs[::2], pairs[1::2], strict=True))
    every = dict(word.split("==") for word in found.pop("all:packages").split())
    assert every.items() >= installed().items()
    assert every.keys() > installed().keys()
    return {
        name: text
        for name, text in found.items()
        if name != "path:python" and (not name.startswith("import:") or not name[7:])
    }


def test_the_description_is_in_threes_and_pairs() -> None:
    executable, version, _, *pairs = describe()

    assert executable == sys.executable
    assert version == ".".join(map(str, sys.version_info[:3]))
    assert described(pairs) == {**installed(), "import:": "asked"}


def test_the_python_that_a_shell_would_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "python").symlink_to(sys.executable)
    (tmp_path / "link").symlink_to(Path(sys.executable).parent)

    def on_path(*folders: object) -> str:
        monkeypatch.setenv("PATH", ":".join(map(str, folders)))
        return parse_python(answers(commands={"python": "\0".join(describe())})).on_path

    assert on_path(tmp_path, tmp_path / "other", "/usr/bin") == f"{tmp_path}/other/python"
    assert on_path(tmp_path / "link") == str(Path(sys.executable).parent / "python")
    assert not on_path(tmp_path)


def test_variables_follow_an_empty_word_and_the_parser_splits_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_EMPTY", "")
    monkeypatch.setenv("NCCL_DEBUG", "INFO\nagain")
    monkeypatch.setenv("OTHER_THING", "1")

    wanted = FactRequest(env_init=":")
    told = answers(commands={"python": "\0".join(describe(["NCCL_"]))}, wanted=wanted)
    without = answers(commands={"python": "\0".join(describe())}, wanted=wanted)

    variables = parse_job_environment(told)
    assert variables is not None
    assert dict(variables).items() >= {"NCCL_EMPTY": "", "NCCL_DEBUG": "INFO\nagain"}.items()
    assert "OTHER_THING" not in dict(variables)
    assert parse_python(told) == parse_python(without)
    assert parse_job_environment(without) is None


def test_the_first_place_wins_and_names_are_compared_as_pip_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, name in (
        ("a", "flash_attn-2.8.0.dist-info"),
        ("b", "Flash.Attn-1.0.dist-info"),
        ("b", "numpy-1.26.4-py3.11.egg-info"),
        ("b", "torchvision-0.20.dist-info"),
    ):
        (tmp_path / place / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / p) for p in ("none", "a", "b")])

    assert installed() == {"flash-attn": "2.8.0", "numpy": "1.26.4"}


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (
            "__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None",
            "12.8",
        ),
        ("cuda = None\nhip = '6.4.1'\n", "rocm6.4.1"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu = None\n", "cpu"),
        (None, ""),
    ],
)
def test_what_torch_was_built_for_without_importing_it(
    text: str | None, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert torch_build() == build


def test_packages_that_the_job_names_are_looked_for_too() -> None:
    source = Path(module.__file__).read_text()
    argv = [sys.executable, "-c", source, "NCCL_", "--", "pytest", "no-such-thing"]
    words = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\0")
    found = words[3 : words.index("", 3)]
    assert described(found) == {**installed(), "pytest": pytest.__version__, "import:": "asked"}


def asked(python: Path | str, **env: str) -> Python:
    """Ask an interpreter as a node does, and parse its answer."""
    argv = [str(python), "-c", Path(module.__file__).read_text()]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=env, cwd="/")
    return parse_python(answers(commands={"python": done.stdout}))


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment of its own, with a package torch; to import it would fail."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    package(site)
    return tmp_path / "venv"


def package(folder: Path) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    return folder / "torch" / "__init__.py"


def test_what_is_imported_from_the_interpreters_own_folders_is_not_told(venv: Path) -> None:
    assert asked(venv / "bin" / "python").foreign == ()


def test_a_pythonpath_that_hides_the_installed_package_is_told(venv: Path, tmp_path: Path) -> None:
    other = package(tmp_path / "other")
    (own,) = venv.glob("lib/python3*/site-packages/torch/__init__.py")
    (found,) = asked(venv / "bin" / "python", PYTHONPATH=f"{other.parents[1]}").foreign or ()
    assert found == ForeignImport(
        name="torch", file=str(other), hides=str(own), origin="PYTHONPATH"
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_pth_file_that_leads_elsewhere_is_told(
    venv: Path, tmp_path: Path, *, first: bool
) -> None:
    other = package(tmp_path / "other")
    (own,) = venv.glob("lib/python3*/site-packages/torch/__init__.py")
    line = str(other.parents[1])
    if first:  # a line that begins with `import` is run
        line = f"import sys; sys.path.insert(0, {line!r})\n{line}"
    else:
        own.unlink()
        own.parent.rmdir()
    pth = own.parents[1] / "old.pth"
    pth.write_text(line + "\n")
    (found,) = asked(venv / "bin" / "python").foreign or ()
    assert (found.file, found.origin) == (str(other), str(pth))
    assert found.hides == (str(own) if first else "")


def test_a_package_of_the_users_own_is_told(tmp_path: Path) -> None:
    base = Path(sys.base_prefix) / "bin" / "python3"
    minor = ".".join(map(str, sys.version_info[:2]))
    other = package(tmp_path / "lib" / f"python{minor}" / "site-packages")
    (found,) = asked(base, PYTHONUSERBASE=str(tmp_path)).foreign or ()
    assert (found.file, found.origin) == (str(other), "user site")


def test_a_module_and_a_folder_without_init_count_too(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "numpy").mkdir(parents=True)
    (tmp_path / "a" / "peft.py").touch()
    found = asked(venv / "bin" / "python", PYTHONPATH=str(tmp_path / "a")).foreign or ()
    files = {one.name: one.file for one in found}
    assert files == {"numpy": f"{tmp_path}/a/numpy/", "peft": f"{tmp_path}/a/peft.py"}
