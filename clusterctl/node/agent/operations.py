"""The names of what an agent can do, each with the function that does it.

An operation is `def op(args: dict, body: bytes, channel: CallChannel) -> Message`. Its module is
imported on the node when the operation is asked for, so a call compiles only what it uses.
"""

from __future__ import annotations

OPERATIONS: dict[str, str] = {
    "checkpoints": "clusterctl.node.checkpoints.checkpoints:checkpoints",
    "echo": "clusterctl.node.agent.main:echo",
    "exec": "clusterctl.node.commands.exec_command:exec_command",
    "hello": "clusterctl.node.agent.main:hello",
    "clear": "clusterctl.node.mirror.mirror:remove_tokens",
    "join": "clusterctl.node.run.operations.join:join",
    "make-venv": "clusterctl.node.commands.make_venv:make_venv",
    "platform": "clusterctl.node.commands.make_venv:describe_platform",
    "place": "clusterctl.node.mirror.mirror:apply_sync",
    "prune": "clusterctl.node.run.operations.prune:prune",
    "push": "clusterctl.node.push.push:push",
    "push-list": "clusterctl.node.push.push:describe",
    "push-look": "clusterctl.node.push.look:look",
    "rsync": "clusterctl.node.mirror.mirror:exec_rsync",
    "seen": "clusterctl.node.mirror.mirror:find_tokens",
    "tree": "clusterctl.node.mirror.sync_diff:compare_tree",
    "read": "clusterctl.node.probe.read:read",
    "survey": "clusterctl.node.probe.read:survey",
    "runs": "clusterctl.node.run.operations.status:list_runs",
    "start": "clusterctl.node.run.operations.start:start",
    "status": "clusterctl.node.run.operations.status:status",
    "stop": "clusterctl.node.run.operations.stop:stop",
    "tail": "clusterctl.node.run.operations.tail:tail",
}
