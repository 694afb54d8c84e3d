"""`clusterctl sandbox`: a cluster of real sshd hosts on this machine."""

import argparse
import json
import os
import sys
from collections.abc import Callable

from clusterctl.cli.shared.options import add_json, whole
from clusterctl.report.console import Screen
from clusterctl.sandbox import demo, gpus, layout, sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.faults.registry import FAULTS
from clusterctl.sandbox.sandbox import Sandbox
from clusterctl.verbs.events import Notice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what can be done with a sandbox."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parsers = {
        name: actions.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        for name, (summary, _) in ACTIONS.items()
    }
    for child in parsers.values():
        child.add_argument(
            "--name",
            default=layout.current(),
            help="which sandbox (default: the one that `exec` put this shell in, else `sandbox`)",
        )
    parsers["demo"].set_defaults(name="demo")
    up = parsers["up"]
    up.add_argument(
        "--nodes", type=whole(1), default=3, metavar="N", help="how many hosts (default: 3)"
    )
    for child in (up, parsers["demo"]):
        child.add_argument(
            "--backend", choices=tuple(sandbox.BACKENDS), help="default: netns for root"
        )
    up.add_argument("--gpus", metavar="MODELxCOUNT", help="GPUs that a simulated nvidia-smi shows")
    up.add_argument(
        "--shells",
        default="bash",
        help="login shells of the hosts in turn: dash,bash+noise,… (default: bash)",
    )
    up.add_argument(
        "--users", metavar="LIST", help="accounts on every host; hosts.yaml uses the first"
    )
    up.add_argument("--ip", choices=("4", "6", "both"), default="4", help="IP version (default: 4)")
    up.add_argument(
        "--jumps", type=whole(0), default=0, metavar="N", help="jump hosts in front (default: 0)"
    )
    add_json(parsers["status"])
    parsers["exec"].add_argument("--on", metavar="NODE", help="on this host, as root, without SSH")
    parsers["exec"].add_argument("command", nargs="+", metavar="CMD")
    fault = parsers["fault"]
    fault.add_argument("node", metavar="NODE")
    fault.add_argument("kind", metavar="KIND")
    fault.add_argument("value", metavar="VALUE", nargs="?", help="what the kind takes")
    width = max(len(kind) for kind in FAULTS)
    fault.epilog = "kinds:\n" + "\n".join(
        f"  {kind:{width}}  {f.summary}{f' [{f.takes}]' if f.takes else ''}"
        for kind, f in FAULTS.items()
    )


def run(args: argparse.Namespace) -> int:
    """Do it."""
    _, action = ACTIONS[args.action]
    return action(args)


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
    healed = sandbox.find(args.name).heal()
    for one in healed:
        print(f"{one.node}: healed of {one.kind} {one.value}".rstrip())
    if not healed:
        Screen().say(Notice(text=f"{args.name}: no host has a fault"))
    return 0


def _down(args: argparse.Namespace) -> int:
    existed = layout.Layout.of(args.name).root.exists()
    sandbox.remove(args.name)
    ended = f"{args.name}: stopped and removed"
    Screen().say(Notice(text=ended if existed else f"there is no sandbox {args.name}"))
    return 0


ACTIONS: dict[str, tuple[str, Callable[[argparse.Namespace], int]]] = {
    "up": ("start hosts", _up),
    "status": ("show the hosts and the faults that they have", _status),
    "exec": ("run a command on the controller's side, or on a host", _exec),
    "fault": ("put a real fault on a host", _fault),
    "heal": ("undo all faults", _heal),
    "down": ("stop the hosts and remove everything", _down),
    "demo": (
        "run a demo: check, launch, stop, resume, generate",
        lambda args: demo.run(args.name, args.backend),
    ),
}
"""Each action's summary and function."""
