"""What is sent of an event: one JSON object that chat services take as it is.

Slack and Mattermost show `text`, Discord shows `content`. Of a message, Slack recommends at most
4,000 characters, Mattermost takes 16,383 and Discord 2,000.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

TEXT_LIMIT = 1500
"""Characters of the text."""
REASON_LIMIT = 1000
MOST_NODES = 256
"""Whose names are sent."""

_CALM = str.maketrans({"<": "(", ">": ")", "[": "(", "]": ")", "@": "(at)", "`": "'"})
"""A line that a rank printed must not call all members of a channel, or be a link in disguise."""

NEXT = {
    "started": "clusterctl status %s",
    "restarted": "clusterctl status %s",
    "alive": "clusterctl status %s",
    "hung": "clusterctl dump %s",
    "waiting": "clusterctl status %s",
    "failed": "clusterctl status %s",
    "ended": "clusterctl runs show %s",
}
"""The command to type after each event."""
RESUME = "clusterctl resume %s --checkpoint latest"


def message(
    event: str,
    words: str,
    *,
    run: str,
    cluster: str,
    name: str = "",
    state: str,
    nodes: List[str],
    attempt: int = 1,
    attempts: int = 1,
    cause: Optional[Dict[str, Any]] = None,
    began: Optional[float] = None,
    resumable: bool = False,
) -> Dict[str, Any]:
    """Return what is sent.

    `words` say what happened, `cause` is why a run ended; `resumable`: it waits for a resume.
    """
    title = "run %s%s on %s" % (run, " (%s)" % name if name else "", cluster)
    command = (RESUME if resumable else NEXT[event]) % run
    words = " ".join(words.split())[:REASON_LIMIT]  # one line: no other one is our advice
    text = "clusterctl: %s %s\nnext: %s" % (title, words, command)
    return {
        "schema": 1,
        "event": event,
        "run": run,
        "cluster": cluster,
        "name": name or None,
        "state": state,
        "attempt": attempt,
        "attempts": attempts,
        "cause": cause,
        "nodes": nodes[:MOST_NODES],
        "node_count": len(nodes),
        "began": began,
        "time": time.time(),
        "next": command,
        **as_text(text),
    }


def trial_message(cluster: str, node: str) -> Dict[str, Any]:
    """Return what `notify --test` sends: all keys of a message, null where they are a run's."""
    text = "clusterctl: a test of the notifications of %s, sent by %s" % (cluster, node)
    usual = message("started", "", run="", cluster=cluster, state="", nodes=[node])
    of_run = dict.fromkeys(("run", "state", "next"))
    return {**usual, **of_run, "event": "test", **as_text(text)}


def as_text(text: str) -> Dict[str, Any]:
    """Return the fields that chat services show; they mention no member of a channel."""
    lines = ["".join(c for c in line if c.isprintable()) for line in text.splitlines()]
    shown = "\n".join(lines).translate(_CALM)[:TEXT_LIMIT]
    return {"text": shown, "content": shown, "allowed_mentions": {"parse": []}}
