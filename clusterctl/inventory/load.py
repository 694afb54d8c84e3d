"""Reads an inventory: a hosts.yaml or a hostfile."""

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clusterctl.errors import InventoryError
from clusterctl.inventory.addresses import own_user
from clusterctl.inventory.cluster import Cluster, LauncherName
from clusterctl.inventory.problems import Problems

VARIABLE = "CLUSTERCTL_INVENTORY"
DEFAULT = "hosts.yaml"

SIZE_LIMIT = 512 * 1024
"""The largest inventory, in bytes; thousands of nodes fit."""

_YAML_NAMES = (".yaml", ".yml", ".json")
_OTHER_NAMES = ("hosts.yaml", "hosts.yml", "inventory.yaml", "hostfile")
_YAML_START = re.compile(r"---|[{\[]|-\s|[\"']?[\w-]+[\"']?\s*:(\s|$)")
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]"
    "|[\ud800-\udfff\ufffe\uffff]"  # one set of both would take long to compile
)


def default_path() -> Path:
    """Return the inventory to read if no option names one: the variable's, else ./hosts.yaml."""
    return Path(os.environ.get(VARIABLE) or DEFAULT)


def load(
    path: Path,
    *,
    launcher: LauncherName | None = None,
    hosts: Sequence[str] = (),
    kept: Path | None = None,
) -> Cluster:
    """Read a hosts.yaml, or an MPI or DeepSpeed hostfile.

    Args:
        launcher: overrides that of the job; with slurm the nodes are those of the allocation.
        hosts: names that stand for the nodes of an allocation which does not exist yet.
        kept: a copy whose content counts instead.

    Raises:
        InventoryError: the file is missing, no inventory, or has problems, all of them listed.
    """
    content = _bytes(kept or path)
    text = _decoded(content, str(path))
    # YAML and the readers take long to import; verbs import this module early.
    from clusterctl.inventory.build import build  # noqa: PLC0415
    from clusterctl.inventory.document import read_yaml  # noqa: PLC0415
    from clusterctl.inventory.other_programs.hostfile import read_hostfile  # noqa: PLC0415

    problems = Problems(str(path))
    read = read_yaml if is_yaml(path, text) else read_hostfile
    document = read(text, problems)
    if document is None:
        problems.end(hint=None if text.strip() else f"clusterctl init --force -i {path}")
    cluster = build(document, problems, launcher=launcher, hosts=hosts)
    if cluster.slurm_job:
        return cluster  # the same file gives other nodes elsewhere
    return replace(cluster, fingerprint=_fingerprint(path, content))


def read_text(path: Path) -> str:
    """Return the text of an inventory of any form; raise InventoryError if there is none."""
    return _decoded(_bytes(path), str(path))


def fingerprint(path: Path) -> str:
    """Return the fingerprint that `load` gives a cluster, without parsing the file."""
    return _fingerprint(path, _bytes(path))


def _fingerprint(path: Path, content: bytes) -> str:
    # An identity is relative to the file's folder, and a node of this user may be local.
    reader = f"{own_user()}\0{path.name}\0{path.resolve().parent}\0"
    return hashlib.sha256(os.fsencode(reader) + content).hexdigest()


def is_yaml(path: Path, text: str) -> bool:
    """Tell a hosts.yaml from a hostfile: by its name, else by its first line with content."""
    if path.suffix.lower() in _YAML_NAMES:
        return True
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return _YAML_START.match(first) is not None


def _bytes(path: Path) -> bytes:
    """Return an inventory's content; InventoryError if it is missing, too large or unreadable."""
    try:
        with path.open("rb") as stream:
            content = stream.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        others = (path.parent / name for name in _OTHER_NAMES)
        other = next((other for other in others if other.is_file()), None)
        place = "" if str(path) == DEFAULT else f" -i {shlex.quote(str(path))}"
        problem, hint = (
            "expected an inventory, found no such file",
            f"-i {other}" if other else f"write one: clusterctl init gpu1 gpu2{place}",
        )
    except IsADirectoryError:
        problem, hint = "expected a file, found a folder", f"-i {path / 'hosts.yaml'}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem, hint = (
            f"expected a readable file, found: {reason}",
            f"ls -l {shlex.quote(str(path))}",
        )
    else:
        if len(content) <= SIZE_LIMIT:
            return content
        problem, hint = (
            f"expected an inventory of at most {SIZE_LIMIT} bytes, found more",
            Problems.hint,
        )
    raise InventoryError((f"{path}: {problem}",), hint=hint)


def _decoded(content: bytes, file: str) -> str:
    problems = Problems(file)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        is_utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        found = "UTF-16" if is_utf16 else f"the byte 0x{content[error.start]:02x}"
        problems.add((), wanted="UTF-8 text", found=found, line=line)
        problems.end()
    strange = _UNPRINTABLE.search(text)
    if strange is not None:
        line = text.count("\n", 0, strange.start()) + 1
        found = f"the character U+{ord(strange.group()):04X}"
        problems.add((), wanted="text", found=found, line=line)
    problems.raise_if_any()
    return text
