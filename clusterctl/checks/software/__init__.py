"""Checks of the interpreter, its packages and environment, and the job."""
