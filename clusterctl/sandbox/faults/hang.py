"""A FUSE file system that never answers; runs on a host until it is killed."""

import ctypes
import os
import sys
import time


def main() -> None:
    """Mount it on the folder in argv[2], and keep it there."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    data = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    folder = os.fsencode(sys.argv[2])
    if libc.mount(b"hung", folder, b"fuse", ctypes.c_ulong(0), data.encode()) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    os.write(1, b"ready\n")
    while True:
        time.sleep(1e6)


if __name__ == "__main__":
    main()
