"""`clusterctl init`: probe hosts and write a `hosts.yaml`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.shared.agree import agrees
from clusterctl.cli.shared.options import add_inventory, add_json, complete_files, inventory_path
from clusterctl.errors import CouldNotTell, UsageError
from clusterctl.inventory.load import DEFAULT
from clusterctl.report.console import Screen
from clusterctl.verbs.events import Notice
from clusterctl.verbs.init.draft import (
    Draft,
    completed,
    draft,
    expect_new,
    from_source,
    name_for,
    write,
)
from clusterctl.verbs.init.with_train import REQUIREMENTS, copy_train, expect_no_train
from clusterctl.wire import SCHEMA, plain

if TYPE_CHECKING:
    from clusterctl.verbs.init.look import Looked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "hosts",
        nargs="*",
        metavar="HOST",
        help="as ssh takes it, a range, [user@]gpu[01-04][:port], or a pattern of your ssh_config,"
        " 'gpu*' (default: localhost)",
    )
    add_inventory(parser)
    parser.add_argument("--name", help="the cluster's name (default: the folder's)")
    action = parser.add_argument(
        "--identity", type=Path, metavar="KEY", help="private key for logging in to the hosts"
    )
    complete_files(action)
    action = parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE|slurm",
        help="take the hosts of a DeepSpeed or MPI hostfile, an Ansible inventory, a hosts.yaml,"
        " or this shell's Slurm allocation",
    )
    complete_files(action)
    parser.add_argument(
        "--group", help="with --from, only this group of an Ansible inventory (default: all)"
    )
    parser.add_argument(
        "--no-connect", action="store_true", help="write the hosts only; connect to none"
    )
    parser.add_argument(
        "--accept-new", action="store_true", help="record the keys of hosts not known yet"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument(
        "--with-train",
        action="store_true",
        help="copy the training program to ./train; without HOST, keep the hosts.yaml that is here",
    )
    parser.add_argument(
        "--print-schema",
        action="store_true",
        help="print the JSON schema of hosts.yaml, for editors; write nothing",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file and say what comes next: 0, or 3 if a host did not answer."""
    if args.print_schema:
        sys.stdout.write(
            (resources.files("clusterctl.inventory") / "hosts.schema.json").read_text()
        )
        return 0
    path = inventory_path(args)
    if args.with_train:
        expect_no_train(Path.cwd())
    asked = args.hosts or args.source or args.force
    keeps_file = args.with_train and path.exists() and not asked
    looked = None if keeps_file else _write_inventory(args, path)
    if not (keeps_file or args.hosts or args.source):
        text = "no HOST was named, so this machine is the only node"
        Screen().say(Notice(text=text, hint="others: clusterctl init --force gpu1 gpu2"))
    if args.with_train:
        copied = copy_train(Path.cwd())
        sys.stderr.write(
            f"wrote {copied.name}/: a program that fine-tunes language models, yours to change\n"
            f"hint: clusterctl setup --requirements {copied.name}/{REQUIREMENTS}"
            " (if the nodes lack torch, transformers or peft)\n"
            "hint: clusterctl launch -- -m train --smoke\n"
        )
    failed = looked.failed if looked else ()
    if args.json:
        undecided = looked.undecided if looked else ()
        remarks = {"undecided": plain(undecided), "failed": plain(failed)}
        print(json.dumps({"schema": SCHEMA, "file": str(path), **remarks}, indent=1))
    return CouldNotTell.exit_code if failed else 0


def _write_inventory(args: argparse.Namespace, path: Path) -> Looked | None:
    """Write the file; return what was found, or None if no host was asked."""
    drafted = _drafted(args)  # a name that it refuses is the first thing to correct
    expect_new(path, overwrite=args.force)
    for text in drafted.remarks:
        Screen().say(Notice(text=text, level="warning"))
    if args.no_connect:
        write(path, completed(drafted).text(), overwrite=args.force)
        remote = not all(node.local for node in drafted.cluster.nodes)
        _say_next(path, " --accept-new, which records the hosts' keys" if remote else "")
        return None
    return _connected(args, path, drafted)


def _connected(args: argparse.Namespace, path: Path, drafted: Draft) -> Looked:
    """Look at the hosts, and write what was found."""
    from clusterctl.verbs.init.look import UnknownHostKeys, look  # noqa: PLC0415

    screen, folder = Screen(), Path.cwd().name or drafted.cluster.name

    def look_once() -> Looked:
        with screen.progress() as progress:
            return look(drafted, folder, accept_new=args.accept_new, emit=progress.show)

    try:
        looked = look_once()
    except UnknownHostKeys as error:
        if not agrees(error, "Record these keys?"):
            raise
        error.accept()
        looked = look_once()
    write(path, looked.draft.text(), overwrite=args.force)
    for remark in (*looked.undecided, *looked.failed):
        screen.say(Notice(node=remark.nodes, text=remark.text, hint=remark.hint, level="warning"))
    _say_next(path, "")
    return looked


def _say_next(path: Path, more: str) -> None:
    inventory = "" if str(path) == DEFAULT else f" -i {shlex.quote(str(path))}"
    sys.stderr.write(f"wrote {path}\nhint: clusterctl check{inventory}{more}\n")


def _drafted(args: argparse.Namespace) -> Draft:
    if args.source is not None:
        if args.hosts:
            raise UsageError("--from: expected no HOST, found some")
        name = args.name or name_for(Path.cwd())
        return from_source(args.source, name=name, group=args.group, identity=args.identity)
    if args.group is not None:
        raise UsageError("--group: expected --from FILE with it, found none")
    return draft(
        args.hosts or ["localhost"],
        name=args.name or name_for(Path.cwd()),
        identity=args.identity,
    )
