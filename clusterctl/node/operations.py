"""The names of what an agent can do, each with the function that does it.

An operation is `def op(args: dict, body: bytes, link: Link) -> Message`. Its module is imported
on the node when the operation is asked for, so a call compiles only what it uses.
"""

from __future__ import annotations

OPERATIONS: dict[str, str] = {
    "checkpoints": "clusterctl.node.checkpoints:checkpoints",
    "echo": "clusterctl.node.main:echo",
    "hello": "clusterctl.node.main:hello",
    "clear": "clusterctl.node.mirror:clear",
    "place": "clusterctl.node.mirror:place",
    "prune": "clusterctl.node.prune:prune",
    "rsync": "clusterctl.node.mirror:rsync",
    "seen": "clusterctl.node.mirror:seen",
    "tree": "clusterctl.node.compare:tree",
    "read": "clusterctl.node.read:read",
    "survey": "clusterctl.node.survey:survey",
    "runs": "clusterctl.node.status:runs_here",
    "start": "clusterctl.node.start:start",
    "status": "clusterctl.node.status:status",
    "stop": "clusterctl.node.stop:stop",
    "tail": "clusterctl.node.tail:tail",
}
