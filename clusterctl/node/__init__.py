"""The only code that runs on nodes: read, listen, connect, rank, supervise, tail.

Standard library only, Python 3.9; sent as source on stdin, so nothing is installed.
"""
