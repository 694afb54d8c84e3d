"""Answers a call that an agent of another version has handed over.

This module and `take_over` keep their names: agents of other versions call them.
"""

from __future__ import annotations

from clusterctl.node.agent import main
from clusterctl.node.agent.call_channel import ControllerDisconnected
from clusterctl.wire import Message, from_json


def take_over(op: str, args_json: str) -> int:
    """Answer a call that another agent has taken in, on the same channel."""
    link = main.claim_stdio()
    link.start_heartbeat()
    try:
        link.send_last(
            main.run_operation(Message({"op": op, "args": from_json(args_json.encode())}), link)
        )
    except ControllerDisconnected:
        return 1
    return 0
