"""The Python API: a session with a cluster, and the runs on it; the command line calls it too.

Its methods import what they need: a program that only checks does not wait for the rest. The
public names are those of `clusterctl.__all__`.
"""
