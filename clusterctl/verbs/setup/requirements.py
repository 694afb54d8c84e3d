"""Reads what a project needs: in one text, and its wheels for the nodes' platforms."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from clusterctl.errors import ClusterError, UsageError
from clusterctl.values import dataclass

NAMES = ("uv.lock", "requirements.txt", "pyproject.toml")
"""The files that are looked for in the current folder, in this order."""
_INCLUDE = re.compile(r"(?:-r|--requirement|-c|--constraint)[ =]*(\S.*)")
_LOCAL = re.compile(r"(?:-e|--editable)\b|\.{0,2}/|file:|\S+\s*@\s*file:")
_EXPORT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What is to be installed."""

    source: Path
    text: str
    """As pip reads it, without references to other files."""


def read_requirements(given: Path | None, folder: Path) -> Requirements:
    """Read the file that is given, else the first of NAMES in the folder."""
    source = given or next((folder / name for name in NAMES if (folder / name).exists()), None)
    if source is None:
        raise UsageError(
            f"expected {', '.join(NAMES[:-1])} or {NAMES[-1]} in {folder}, found none of them",
            hint="with a file of another name: --requirements FILE",
        )
    try:
        if source.name == "uv.lock":
            text = _from_lock(source)
        elif source.suffix == ".toml":
            text = _from_project(source)
        else:
            text = "".join(f"{line}\n" for line in _lines(source, ()))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(source), error) from error
    return Requirements(source=source, text=text)


def _unreadable(where: str, error: OSError | UnicodeDecodeError) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    return UsageError(f"{where}: expected a file of requirements, found: {why}")


def _from_lock(source: Path) -> str:
    uv = shutil.which("uv")
    if uv is None:
        raise UsageError(
            f"{source}: to read it, this machine needs uv",
            hint="pip install uv, or: clusterctl setup --requirements requirements.txt",
        )
    argv = [uv, "export", "--frozen", "--no-emit-project", "--no-hashes", "--quiet"]
    try:
        done = subprocess.run(
            argv,
            cwd=source.parent,
            check=False,
            capture_output=True,
            text=True,
            timeout=_EXPORT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{source}: uv export did not end") from error
    if done.returncode:
        raise UsageError(f"{source}: uv export: {done.stderr.strip()}")
    return done.stdout


def _from_project(source: Path) -> str:
    import tomllib  # noqa: PLC0415  (each launch imports this module)

    try:
        project = tomllib.loads(source.read_text()).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: {error}") from error
    dependencies = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(dependencies, list) or not all(isinstance(d, str) for d in dependencies):
        raise UsageError(
            f"{source}: expected a list of dependencies under [project], found none",
            hint="with a file of another name: --requirements FILE",
        )
    for line in dependencies:
        _refuse_local(source, 0, line)
    return "".join(f"{line}\n" for line in dependencies)


def _lines(source: Path, above: tuple[Path, ...]) -> Iterator[str]:
    """Yield the lines of a file, and in place those of the files that it includes."""
    text = source.read_text(encoding="utf-8-sig").replace("\\\n", " ")
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        include = _INCLUDE.fullmatch(line)
        if include:
            inner = source.parent / include[1].strip()
            if inner in (*above, source):
                raise UsageError(f"{source}:{number}: {inner} includes itself")
            if line.startswith(("-c", "--constraint")):
                raise UsageError(
                    f"{source}:{number}: constraints are not supported: {line}",
                    hint="name the versions in the file itself",
                )
            if not inner.is_file():
                raise UsageError(f"{source}:{number}: {line}: there is no file {inner}")
            try:
                yield from _lines(inner, (*above, source))
            except (OSError, UnicodeDecodeError) as error:
                raise _unreadable(f"{source}:{number}: {inner}", error) from error
        elif line:
            _refuse_local(source, number, line)
            yield line


def _refuse_local(source: Path, number: int, line: str) -> None:
    if _LOCAL.match(line):
        where = f"{source}:{number}" if number else f"{source}"
        raise UsageError(
            f"{where}: the nodes do not have {line.rsplit(maxsplit=1)[-1]}",
            hint="leave it out: launch syncs the folder; set PYTHONPATH in job.env for a package",
        )


KEPT_LINES = 8
_RETRY = "WARNING: Retrying "
"""How a line of pip begins that tells of an index it cannot reach."""
_GLIBC = (17, 28, 34, 35)
"""Minor versions of glibc that wheels are built for, besides the node's own."""
_MUSL = (2, 1)


def platforms(arch: str, glibc: str) -> tuple[str, ...]:
    """Return the platform tags of wheels that run on a node: `manylinux_2_28_x86_64`.

    A node without glibc has musl, and Python 3.9 or newer comes with musl 1.2.
    """
    if not glibc:
        return tuple(f"musllinux_1_{minor}_{arch}" for minor in _MUSL)
    found = re.fullmatch(r"2\.(\d{1,3})", glibc)
    minor = int(found[1]) if found else _GLIBC[0]
    known = sorted({*(each for each in _GLIBC if each <= minor), minor}, reverse=True)
    return (*(f"manylinux_2_{each}_{arch}" for each in known), f"manylinux2014_{arch}")


def download(
    requirements: Requirements, python: str, tags: tuple[str, ...], folder: Path
) -> tuple[Path, ...]:
    """Download the wheels of the requirements and of all that these need."""
    file = folder / "requirements.txt"
    file.write_text(requirements.text)
    place = folder / "wheels"
    argv = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"),
        *("--quiet", "--dest", str(place), "--only-binary=:all:", "--python-version", python),
        *(f"--platform={tag}" for tag in tags),
        *("--requirement", str(file)),
    ]
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        told = [line for line in said if not line.startswith(_RETRY)]
        lines = "\n".join(told[-KEPT_LINES:])
        hint = "only wheels can be sent to a node without a network, no sources"
        if len(told) < len(said):
            hint = (
                "name a package index that this machine reaches: set PIP_INDEX_URL,"
                " or correct --index-url in the requirements, which goes first"
            )
        message = f"cannot download wheels for Python {python} on {tags[0]}:\n{lines}"
        raise ClusterError(message, hint=hint)
    return tuple(sorted(place.iterdir()))
