"""What the source of a transfer has: it lists the path's files, with the hashes of their blocks."""

import shlex

from clusterctl.errors import ClusterError, NodeError
from clusterctl.model.push import Manifest
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.events import CopyProgress, Emit
from clusterctl.verbs.push.result import HERE
from clusterctl.verbs.push.wanted import Source
from clusterctl.verbs.rpc import Nodes, validated_answer

MANIFEST_LIMIT = 48 * 1024 * 1024
"""Bytes of a deflated list of files with their hashes: no source makes a larger one."""


def list_source(
    source: Source, pool: Nodes, shown: str, *, leave_out: bool, emit: Emit
) -> tuple[Manifest, bytes]:
    """Have the source hash a path; return what it has, and the list as nodes are sent it."""
    args = {"path": source.path, "leave_out": leave_out}
    request = Request(op="push-list", args=args, body_limit=MANIFEST_LIMIT)
    size = source.facts.size or 0
    listed: Manifest | NodeError = NodeError("lost", "answer", "it ended early")
    body = b""
    call = pool.start(source.name, request)
    try:
        for _, item in pool.follow({source.name: call}):
            if isinstance(item, Reply):
                listed = item.error or listed
            elif "hashed" in item.head:
                done = min(_whole(item.head["hashed"]), size)
                emit(
                    CopyProgress(
                        path=shown, phase="hashing", done=done, total=size, nodes=0, total_nodes=0
                    )
                )
                continue
            else:
                reply = Reply(node=source.name, messages=(item,))
                listed, body = validated_answer(reply, Manifest), item.body
            if isinstance(listed, NodeError):
                break
    finally:
        call.close()
    if not isinstance(listed, NodeError):
        return listed, body
    raise ClusterError(f"{shown}: {source.name}: {listed}", hint=hint_of(source, listed))


def hint_of(source: Source, error: NodeError) -> str | None:
    """Say what to do about a path that the source cannot list."""
    if error.state != "too-many-files":
        return error.hint or None
    folder = shlex.quote(source.path)
    pack = f"tar -cf {folder}.tar -C {folder} ."
    if source.name != HERE:
        pack = f"clusterctl exec --nodes {source.name} -- {pack}"
    return f"push one file: {pack}"


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
