"""The remedy if the job would run in an interpreter without torch."""

from __future__ import annotations

NAME_INTERPRETER = (
    "name the interpreter that has it: `defaults: {python: /path/venv/bin/python}` in hosts.yaml"
)
"""Better than pip: a job is rarely meant to run in the system's Python."""
