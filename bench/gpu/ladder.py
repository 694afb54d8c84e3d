"""The ladder of `check --deep` on this machine alone, as a node runs it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from clusterctl.node.agent.loader import program
from clusterctl.verbs.preflight.ladder import LIMITS, MAIN, PROGRAM


def main() -> int:
    device, gpus = sys.argv[1], list(range(int(sys.argv[2])))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    plan = {
        "rank": 0, "world": 1, "address": "127.0.0.1", "port": port, "join_s": 30.0,
        "limit_s": 100.0, "limits": dict.fromkeys(LIMITS, 40.0), "device": device, "gpus": gpus,
        "rails": len(gpus), "dcgm": device == "cuda", "rungs": ["gpus", "dcgm", "inside"],
    }  # fmt: skip
    argv = [sys.executable, "-c", program(PROGRAM).decode(), MAIN, json.dumps(plan)]
    settings = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False, env=settings)
    print(done.stdout)
    return problems(done.stdout)


def problems(output: str) -> int:
    """Print the rungs that did not work, and return the exit code."""
    try:
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        print("the ladder printed no result")
        return 1
    broken = [rung["name"] for rung in found.get("rungs", ()) if not rung["works"]]
    if broken or found.get("error") or not found.get("rungs"):
        print(f"rungs that did not work: {broken} {found.get('error', '')}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
