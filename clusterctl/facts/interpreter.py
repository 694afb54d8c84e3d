"""What to type where the job would run in an interpreter that lacks torch."""

from __future__ import annotations

NAME_INTERPRETER = (
    "name the interpreter that has it: `defaults: {python: /path/venv/bin/python}` in hosts.yaml"
)
"""Better than pip, if the job would run in the system's Python: that one is rarely meant."""
