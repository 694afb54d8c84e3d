"""A command that tells what it took: `flooded.py FILE WORD...`; children are not counted."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from clusterctl.cli.shared.main import main
from clusterctl.errors import ClusterError, NodeError
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory import build
from clusterctl.inventory.load import load
from clusterctl.sync.rsync import push
from clusterctl.transport.interface import Request
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh.paramiko_connection import ParamikoConnection
from clusterctl.verbs.push.result import WantedPath
from clusterctl.verbs.push.transfer import Transfer
from clusterctl.verbs.push.wanted import Source

HOST = "127.0.0.1"


def flooded(words: list[str]) -> int:
    """Run what the words say: a verb, or a step that takes more than a flood to come to."""
    if words == ["rsync"]:
        with Pool(load(Path("hosts.yaml"))) as pool:
            push(
                pool._connection(HOST),
                source=Path(),
                paths=[b"train.py"],
                workdir="/",
                folder=Path(),
                temporary="own",
                alive=lambda _sent: None,
            )
        return 0
    if words == ["manifest"]:
        source = Source(name=HOST, path="/data", facts=PathFacts(path="/data"))
        wanted = WantedPath(shown="/data", here="", sources={HOST: "/data"}, targets={HOST: "/to"})
        with Pool(load(Path("hosts.yaml"))) as pool:
            transfer = Transfer(
                wanted=wanted,
                source=source,
                pool=pool,
                source_pool=pool,
                addresses={},
                emit=lambda _event: None,
            )
            transfer.run((HOST,))
        return 0
    if words == ["ended"]:
        with Pool(load(Path("hosts.yaml"))) as pool:
            list(pool.call({HOST: Request(op="runs", args={})}))
            connection = pool._connection(HOST)
            assert isinstance(connection, ParamikoConnection)
            connection.transport.join(300)
            print(HOST, connection.transport.why_closed, file=sys.stderr)
        return 3
    return main(words)


if __name__ == "__main__":
    # An address of this machine would be reached without SSH.
    vars(build)["is_here"] = lambda _host, _own: False
    began = time.process_time()
    try:
        code = flooded(sys.argv[2:])
    except (ClusterError, NodeError) as error:
        print(HOST, error, file=sys.stderr)
        code = 3
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    took = {"seconds": time.process_time() - began, "kib": int(status["VmHWM"].split()[0])}
    Path(sys.argv[1]).write_text(json.dumps(took))
    sys.exit(code)
