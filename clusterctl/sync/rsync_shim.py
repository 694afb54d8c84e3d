"""Stands in for ssh under `rsync -e`: hands its own stdin and stdout to the controller.

Run as `python -I -S rsync_shim.py SOCKET HOST rsync --server …`; standard library only, since one
starts per node. The controller moves the bytes over the connection that it has, and answers with
one byte, the exit status.
"""

import json
import socket
import sys


def main(argv: list[str]) -> int:
    """Hand over, wait, and return the exit status."""
    with socket.socket(socket.AF_UNIX) as controller:
        controller.connect(argv[1])
        socket.send_fds(controller, [json.dumps(argv[3:]).encode()], [0, 1])
        # This process's copies would keep rsync from seeing the end.
        sys.stdin.close()
        sys.stdout.close()
        status = controller.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
