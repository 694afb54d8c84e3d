"""Facts in a file: `--save-facts` writes it, `--facts` judges it again without a machine."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.facts.nodefacts import NodeFacts, from_document, to_document
from clusterctl.model.from_json import DocumentError
from clusterctl.own_files import write_named


def save_facts(path: Path, facts: Mapping[str, NodeFacts]) -> None:
    """Write the facts; raise UsageError if the file cannot be written."""
    try:
        write_named(path, json.dumps(to_document(facts), indent=1).encode() + b"\n")
    except OSError as error:
        raise UsageError(
            f"{path}: expected a place to write, found: {error.strerror}",
            hint=f"ls -ld {shlex.quote(str(path.absolute().parent))}",
        ) from error


def load_facts(path: Path) -> dict[str, NodeFacts]:
    """Read facts that were saved."""
    try:
        return from_document(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="write one: clusterctl check --save-facts facts.json"
        ) from error
    except (DocumentError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not saved facts: {error}") from error
