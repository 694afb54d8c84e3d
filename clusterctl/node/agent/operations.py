"""The names of what an agent can do, each with the function that does it.

An operation is `def op(args: dict, body: bytes, channel: CallChannel) -> Message`. Its module is
imported on the node when the operation is asked for, so a call compiles only what it uses.
"""

from __future__ import annotations

OPERATIONS: dict[str, str] = {
    "checkpoints": "clusterctl.node.checkpoints.checkpoints:checkpoints",
    "echo": "clusterctl.node.agent.main:echo",
    "hello": "clusterctl.node.agent.main:hello",
    "clear": "clusterctl.node.mirror.mirror:clear",
    "place": "clusterctl.node.mirror.mirror:place",
    "prune": "clusterctl.node.run.prune:prune",
    "rsync": "clusterctl.node.mirror.mirror:rsync",
    "seen": "clusterctl.node.mirror.mirror:seen",
    "tree": "clusterctl.node.mirror.sync_diff:tree",
    "read": "clusterctl.node.probe.read:read",
    "survey": "clusterctl.node.probe.probe:probe",
    "runs": "clusterctl.node.run.status:runs_here",
    "start": "clusterctl.node.run.start:start",
    "status": "clusterctl.node.run.status:status",
    "stop": "clusterctl.node.run.stop:stop",
    "tail": "clusterctl.node.run.tail:tail",
}
