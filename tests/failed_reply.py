"""The error of a reply that must have one."""

from __future__ import annotations

from clusterctl.errors import NodeError
from clusterctl.transport.interface import Reply


def error_of(reply: Reply) -> NodeError:
    """Return why the node failed."""
    assert reply.error is not None, reply
    return reply.error
