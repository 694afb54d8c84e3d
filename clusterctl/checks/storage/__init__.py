"""Checks of paths, disks, shared folders, and the files on them."""
