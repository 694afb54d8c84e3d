"""Finishes for a supervisor that died: reports it to the other nodes, writes the end."""

from __future__ import annotations

from typing import Any, Dict

from clusterctl.node.supervisor.shutdown import Cause
from clusterctl.node.supervisor.supervisor import Supervisor


class Finisher(Supervisor):
    """Takes the dead supervisor's place; what it left running has been killed."""

    def finish(self, saved: Dict[str, Any], reason: str, died: float) -> None:
        """End this node run and with it the run, unless it was ending already.

        `saved` is the dead supervisor's last state, `reason` and `died` how and when it died.
        """
        self._ranks.stopping = True
        self._next.give_up("the supervisor had died")
        self._record.event("supervisor-died", time=died, message=reason, pid=saved.get("pid"))
        self.began = saved.get("began", self.began)
        self._ending.takes_over = True
        self._ending.stop_file = saved.get("stop_file", "")
        self._ranks.restore(saved.get("ranks", ()))
        self._housekeeping.start_heartbeat()
        end, node = saved.get("end"), self._job["node"]
        if end is None:
            self._end_everywhere(Cause(by="supervisor", reason=reason, node=node))
            return
        if end["state"] != "finished":  # the others may not have heard
            self._peers.send_ending(Cause.read({**end, "node": node})._asdict())
        self._ending.resume({**end, "reason": "%s; %s" % (end["reason"], reason)})
