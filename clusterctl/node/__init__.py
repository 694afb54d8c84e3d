"""The only code that runs on nodes: the agent, the probes, the mirror, and the supervisor of runs.

Standard library only, Python 3.9; sent as source on stdin, so nothing is installed.
"""
