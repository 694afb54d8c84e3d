"""The agent: takes a request from the channel, runs its operation, answers, and exits.

A controller that asks again soon has it stay: to start another takes most of a call's time.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from clusterctl.node.agent import loader
from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected, OperationError
from clusterctl.node.agent.operations import OPERATIONS
from clusterctl.wire import Message, read_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    Operation = Callable[[Dict[str, Any], bytes, CallChannel], Message]


BEGAN = time.clock_gettime(time.CLOCK_BOOTTIME)
"""When the agent began, in seconds since boot."""
STAY_SECONDS = 60.0
"""How long an agent that is to stay waits for the next request."""


def serve(marker: bytes) -> None:
    """Answer the request that follows on stdin, and more if that one asks for it; never returns.

    Args:
        marker: what the controller waits for before it takes bytes for frames.
    """
    link = claim_stdio()
    code = 0
    try:
        os.write(link.output, marker)
        request = read_message(link.reader)
        while request is not None:
            link.start_heartbeat()
            link.send_last(run_operation(request, link))
            if link.outlived:
                wait_for_descendants(link)
            if not request.head.get("stay"):
                break
            link = CallChannel(link.reader, link.output)
            request = next_request(link, marker)
    except ControllerDisconnected:
        code = 1
    except BaseException:  # noqa: BLE001  (the broken stream and stderr tell the controller)
        sys.excepthook(*sys.exc_info())
        code = 1
    # Not sys.exit: an abandoned thread, stuck in the kernel for a dead mount, must not hold us.
    os._exit(code)


def next_request(link: CallChannel, marker: bytes) -> Message | None:
    """Wait for another request; None: there is none. Its modules come before it."""
    link.receive_timeout_s = STAY_SECONDS
    try:
        while (modules := link.receive()) is not None and "modules" not in modules.head:
            pass  # a word to the operation before, which did not wait for it
        request = link.receive() if modules is not None else None
    except TimeoutError:
        return None
    link.receive_timeout_s = None
    if modules is None or request is None:
        return None
    os.write(link.output, marker)  # from here on it is not to be sent to another agent
    loader.add(modules.body, modules.head["modules"])
    return request


def wait_for_descendants(link: CallChannel) -> None:
    """Stay until all that the operation detached has ended; the controller does not wait."""
    for descriptor in (link.reader.fileno(), link.output, sys.stderr.fileno()):
        os.close(descriptor)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def claim_stdio() -> CallChannel:
    """Move the channel from 0, 1 and 2 to descriptors that no child inherits."""
    channel = [os.dup(number) for number in (0, 1, 2)]  # close-on-exec, by Python's default
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    sys.stderr = os.fdopen(channel[2], "w", buffering=1, encoding="utf-8", errors="replace")
    return CallChannel(os.fdopen(channel[0], "rb", buffering=0), channel[1])


def run_operation(request: Message, channel: CallChannel) -> Message:
    """Run the operation that a request names, and return its last answer.

    An error that the operation did not foresee is `crash` in the head, with the traceback.
    """
    try:
        operation = import_operation(request.head["op"])
        gc.enable()  # off until here: what was imported stays
        return operation(request.head.get("args", {}), request.body, channel)
    except OperationError as error:
        return Message(error.head())
    except ControllerDisconnected:
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, the controller must hear of it)
        import traceback  # noqa: PLC0415  (its import takes time that every other call saves)

        words = "".join(traceback.format_exception_only(type(error), error)).strip()
        return Message({"crash": words, "traceback": traceback.format_exc()})


def import_operation(op: str) -> Operation:
    """Import the function of an operation."""
    module, _, function = OPERATIONS[op].partition(":")
    found: Operation = getattr(__import__(module, fromlist=[function]), function)
    return found


def hello(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Give the arguments and the body back, with what runs here: does this way work at all?"""
    del channel
    head = {"args": args, "python": sys.version.split()[0], "executable": sys.executable}
    return Message({**head, "host": os.uname().nodename, "uid": os.getuid()}, body)


def echo(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Give back each message that comes, until the controller says no more."""
    channel.send(Message({"args": args}, body))
    count = 0
    while (message := channel.receive()) is not None:
        channel.send(message)
        count += 1
        if message.head.get("last"):
            break
    return Message({"count": count})
