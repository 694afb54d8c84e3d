"""Whether a process that imported train/ may fork a child that uses CUDA, as tests of ranks do."""

from __future__ import annotations

import os
import sys


def main() -> int:
    import torch

    import train.run  # noqa: F401  (the ranks of tests are forked from a process that has it)

    child = os.fork()
    if not child:
        try:
            print("child:", torch.zeros(1, device=sys.argv[1]), flush=True)
        except BaseException as error:  # noqa: BLE001  (printed; the child must not run on)
            print(f"child: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"exit code of the child: {code}")
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
