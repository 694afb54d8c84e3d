"""The names of what an agent can do, each with the function that does it.

An operation is `def op(args: dict, body: bytes, channel: CallChannel) -> Message`. Its module is
imported on the node when the operation is asked for, so a call compiles only what it uses.
"""

from __future__ import annotations

OPERATIONS: dict[str, str] = {
    "checkpoint-writers": "clusterctl.node.checkpoints.writer_notes:checkpoint_writers",
    "checkpoints": "clusterctl.node.checkpoints.checkpoints:checkpoints",
    "collect-facts": "clusterctl.node.probe.read:collect_facts",
    "dump": "clusterctl.node.hang.dump:dump",
    "echo": "clusterctl.node.agent.main:echo",
    "exec": "clusterctl.node.commands.exec_command:exec_command",
    "hello": "clusterctl.node.agent.main:hello",
    "join": "clusterctl.node.run.operations.join:join",
    "make-venv": "clusterctl.node.commands.make_venv:make_venv",
    "metrics": "clusterctl.node.history.metrics:metrics",
    "note-runs": "clusterctl.node.run.operations.note_runs:note_runs",
    "notify-test": "clusterctl.node.notify.trial:notify_test",
    "platform": "clusterctl.node.commands.make_venv:describe_platform",
    "prune": "clusterctl.node.run.operations.prune:prune",
    "push": "clusterctl.node.push.push:push",
    "push-list": "clusterctl.node.push.push:describe",
    "push-look": "clusterctl.node.push.look:look",
    "read": "clusterctl.node.probe.read:read",
    "rsync": "clusterctl.node.mirror.mirror:exec_rsync",
    "runs": "clusterctl.node.run.operations.status:list_runs",
    "samples": "clusterctl.node.history.answer:samples",
    "share-clear": "clusterctl.node.mirror.mirror:remove_tokens",
    "share-look": "clusterctl.node.mirror.mirror:find_tokens",
    "start": "clusterctl.node.run.operations.start:start",
    "status": "clusterctl.node.run.operations.status:status",
    "stop": "clusterctl.node.run.operations.stop:stop",
    "sync-apply": "clusterctl.node.mirror.mirror:apply_sync",
    "sync-compare": "clusterctl.node.mirror.sync_diff:compare_tree",
    "tail": "clusterctl.node.run.operations.tail:tail",
    "watch": "clusterctl.node.history.answer:watch",
}
