"""`clusterctl sandbox`: a cluster of real sshd hosts on this machine."""

from __future__ import annotations

import argparse

from clusterctl.cli import sandbox_actions
from clusterctl.sandbox import layout, sandbox
from clusterctl.sandbox.faults.registry import FAULTS

ACTIONS = {
    "up": "start hosts",
    "status": "show the hosts and the faults that they have",
    "exec": "run a command on the controller's side, or on a host",
    "fault": "put a real fault on a host",
    "heal": "undo all faults",
    "down": "stop the hosts and remove everything",
    "demo": "run a demo: check, launch, stop, resume, generate",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what can be done with a sandbox."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parsers = {
        name: actions.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        for name, summary in ACTIONS.items()
    }
    for child in parsers.values():
        child.add_argument(
            "--name",
            default=layout.current(),
            help="which sandbox (default: the one that `exec` put this shell in, else `sandbox`)",
        )
    parsers["demo"].set_defaults(name="demo")
    up = parsers["up"]
    up.add_argument("--nodes", type=int, default=3, metavar="N", help="how many hosts (default: 3)")
    for child in (up, parsers["demo"]):
        child.add_argument(
            "--backend", choices=tuple(sandbox.BACKENDS), help="default: netns for root"
        )
    up.add_argument("--gpus", metavar="MODELxCOUNT", help="GPUs that a simulated nvidia-smi shows")
    up.add_argument(
        "--shells", default="bash", help="login shells of the hosts in turn: dash,bash+noise,…"
    )
    up.add_argument(
        "--users", metavar="LIST", help="accounts on every host; hosts.yaml uses the first"
    )
    up.add_argument("--ip", choices=("4", "6", "both"), default="4", help="IP version (default: 4)")
    up.add_argument(
        "--jumps", type=int, default=0, metavar="N", help="jump hosts in front (default: 0)"
    )
    parsers["status"].add_argument("--json", action="store_true", help="print one JSON document")
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
    return sandbox_actions.ACTIONS[args.action](args)
