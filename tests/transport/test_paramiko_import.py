"""paramiko is imported without what it does not need for us, and works for others as before."""

from __future__ import annotations

import subprocess
import sys

QUICK = """\
import sys
from clusterctl.transport.connector import without_invoke

with without_invoke():
    import paramiko
assert "invoke" not in sys.modules and "unittest" not in sys.modules
config = paramiko.SSHConfig.from_text('Match exec "exit 0"\\n  User found\\n')
assert config.lookup("host")["user"] == "found"
import fabric, invoke
assert invoke.run
"""

LATE = """\
import invoke, sys
from clusterctl.transport.connector import without_invoke

with without_invoke():
    import paramiko
assert sys.modules["invoke"] is invoke is paramiko.config.invoke
"""


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_invoke_is_imported_when_somebody_wants_it() -> None:
    run(QUICK)


def test_who_has_it_already_keeps_it() -> None:
    run(LATE)
