"""The login shells of sandbox hosts, with rc files that may print."""

import shutil
from pathlib import Path

from clusterctl.errors import ClusterError, UsageError

NOISE = "+noise"
"""`bash+noise`: its rc files write to stdout and stderr, as those of many users do."""

_POSIX = 'echo "Welcome, $USER! (this line is noise)"\necho "noise on stderr" >&2\n'
_CSH = 'echo "Welcome! (this line is noise)"\n'
RC_FILES = {
    "sh": {},
    "dash": {},  # reads no rc file when sshd runs a command
    "bash": {".bashrc": _POSIX, ".bash_profile": _POSIX},
    "zsh": {".zshenv": _POSIX, ".zshrc": _POSIX},
    "fish": {".config/fish/config.fish": _POSIX},
    "tcsh": {".tcshrc": _CSH},
}


def split(shell: str) -> tuple[str, bool]:
    """Return a shell's name and whether its rc files print."""
    name = shell.removesuffix(NOISE)
    if name not in RC_FILES:
        raise UsageError(f"shell: expected one of {', '.join(RC_FILES)}, found {name!r}")
    return name, shell.endswith(NOISE)


def path_of(shell: str) -> str:
    """Return the path of a shell; raise ClusterError if it is not installed."""
    name, _ = split(shell)
    found = shutil.which(name, path="/bin:/usr/bin:/usr/local/bin")
    if found is None:
        raise ClusterError(
            f"shell {name}: expected on this machine, found none",
            hint=f"sudo apt-get install {name}",
        )
    return found


def write_rc_files(home: Path, shell: str) -> None:
    """Write the rc files of a login shell into a home folder."""
    name, noisy = split(shell)
    if noisy:
        for file, text in RC_FILES[name].items():
            path = home / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
