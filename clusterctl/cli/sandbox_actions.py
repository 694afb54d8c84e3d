"""What each action of `clusterctl sandbox` does."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable

from clusterctl.sandbox import demo, gpus, sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.sandbox import Sandbox


def _up(args: argparse.Namespace) -> int:
    spec = SandboxSpec(
        nodes=args.nodes,
        gpus=gpus.parse(args.gpus) if args.gpus else gpus.NONE,
        shells=tuple(args.shells.split(",")),
        users=tuple(args.users.split(",")) if args.users else (),
        ip=args.ip,
        jumps=args.jumps,
    )
    box = sandbox.up(args.name, spec, backend=args.backend)
    _show(box)
    name = "" if args.name == "sandbox" else f" --name {args.name}"
    sys.stderr.write(f"hint: clusterctl sandbox exec{name} -- clusterctl check\n")
    return 0


def _show(box: Sandbox) -> None:
    """Print the hosts, and what is wrong with each."""
    faults = box.faults()
    hosts = (*box.jumps, *box.hosts)
    width = max(len(host.interface) for host in hosts)
    for host in hosts:
        ill = ", ".join(f"{f.kind} {f.value}".strip() for f in faults if f.node == host.name)
        address = f"[{host.address}]" if ":" in host.address else host.address
        shown = f"{host.name:8} {address}:{host.port:<6}{host.interface:{width}}"
        print(f"{shown}  {ill or 'healthy'}")
    print(f"inventory {box.inventory}")


def _status(args: argparse.Namespace) -> int:
    box = sandbox.find(args.name)
    if args.json:
        print(json.dumps(box.to_json(), indent=1))
    else:
        _show(box)
    return 0


def _exec(args: argparse.Namespace) -> int:
    box = sandbox.find(args.name)
    command = args.command
    argv = box.backend.on(box.host(args.on), command) if args.on else box.command(command)
    os.execvpe(argv[0], argv, box.environment())  # noqa: S606  (exec is the point)


def _fault(args: argparse.Namespace) -> int:
    one = sandbox.find(args.name).fault(args.node, args.kind, args.value)
    print(f"{one.node}: {one.kind} {one.value}".rstrip())
    return 0


def _heal(args: argparse.Namespace) -> int:
    for one in sandbox.find(args.name).heal():
        print(f"{one.node}: healed of {one.kind} {one.value}".rstrip())
    return 0


def _down(args: argparse.Namespace) -> int:
    sandbox.remove(args.name)
    return 0


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "up": _up,
    "status": _status,
    "exec": _exec,
    "fault": _fault,
    "heal": _heal,
    "down": _down,
    "demo": lambda args: demo.run(args.name, args.backend),
}
