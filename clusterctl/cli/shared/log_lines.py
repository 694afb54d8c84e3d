"""Log lines on stderr that look like our other messages."""

import logging

from clusterctl.safe_text import strip_controls


class _Lines(logging.Formatter):
    """`warning: …`; the module only with `-v`."""

    def format(self, record: logging.LogRecord) -> str:
        where = "" if record.levelno >= logging.WARNING else f"{record.name}: "
        lines = super().format(record).splitlines()
        text = "\n".join(map(strip_controls, lines))
        return f"{record.levelname.lower()}: {where}{text}"


def log_to_stderr(verbose: int, *, quiet: bool) -> None:
    """Begin to log; `verbose` counts `-v`."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING - 10 * min(verbose, 2))
    if quiet:
        logging.getLogger("clusterctl.messages").setLevel(logging.WARNING)
