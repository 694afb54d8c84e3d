"""The rungs of `check --deep` on one node; the job's own interpreter runs it.

This process loads torch once, and forks a child for each attempt: a child starts at once, has a
limit, and is killed beyond it. After each rung the nodes tell the master how it went there. If it
broke on one of them, all stop. They speak through torch's TCPStore, whose server is the master's.

A line of JSON is printed after each rung; the last one has everything known.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping

from clusterctl.node.agent.child_tasks import Child, gather, run_function
from clusterctl.node.probe.trial import dcgm
from clusterctl.node.probe.trial.gpu_trial import try_gpu
from clusterctl.node.probe.trial.job_collective import all_reduce
from clusterctl.node.probe.trial.nccl_lines import ask_nccl, kept_lines

GRACE_SECONDS = 5.0
"""The time a child has to report, after torch gave up."""
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
ERROR_LIMIT = 2000


def main(text: str) -> None:
    """Climb as the plan says, which is JSON.

    Args:
        text: `rank`, `world`, `address` and `port` of the master, `join_s`, `limit_s` for
            everything, `limits` (seconds of each rung), `rungs` to try, `device` (cuda or cpu),
            `gpus` (their numbers on this node), `rails` (how many of them every node has), `dcgm`
            (run it, if it is there).
    """
    plan = json.loads(text)
    die_with_parent()
    signal.alarm(int(plan["limit_s"]))  # even if no parent is left to end this process
    gc.disable()  # it would be a third of the import
    try:
        import torch.distributed  # noqa: F401, PLC0415  (once, also for the store's server)

        gc.freeze()
        gc.enable()
        Ladder(plan).climb()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
        show({"error": words_of(error)})
    # A backend's threads may wait for peers that exited; nothing is left to do.
    os._exit(0)


class Ladder:
    """What this node has tried so far."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self.plan = plan
        self.found: Dict[str, Any] = {"rungs": [], "stopped": "", "blamed": []}
        # In a process of its own: the server has a thread, and this process is forked often.
        is_master = plan["rank"] == 0
        server = [run_function("server", self._serve, plan["limit_s"])] if is_master else []
        try:
            self.store = self._open_store(server=False)
        except Exception:
            for child in server:
                child.deadline = time.monotonic() + GRACE_SECONDS / 10
                gather([child])
                if child.output:
                    raise OSError(child.output.decode("utf-8", "replace")) from None
            raise

    def _open_store(self, *, server: bool) -> Any:  # noqa: ANN401  (torch's)
        from torch import distributed  # noqa: PLC0415

        dist: Any = distributed  # its stores are not in its list of names
        address, port = self.plan["address"], self.plan["port"]
        limit = timedelta(seconds=self.plan["join_s"])
        return dist.TCPStore(address, port, None, server, limit, wait_for_workers=False)

    def _serve(self, write: Callable[[bytes], None]) -> None:
        """Keep the store for all nodes, until this node's process ends."""
        die_with_parent()
        try:
            store = self._open_store(server=True)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
            write(words_of(error).encode())
            return
        while store is not None:
            signal.pause()

    def climb(self) -> None:
        """Try one rung after the other, until one is broken on some node."""
        rungs: Dict[str, Callable[[], bool]] = {
            "sum": self.sum_on_cpus,
            "gpus": self.try_gpus,
            "dcgm": self.run_dcgm,
            "inside": self.sum_inside,
            "across": self.exchange_across,
        }
        for name in self.plan["rungs"]:
            began = time.monotonic()
            works = rungs[name]()
            seconds = time.monotonic() - began
            blamed = self.agree(name, works=works)
            self.found["rungs"].append({"name": name, "works": works, "seconds": seconds})
            if blamed:
                self.found.update(stopped=name, blamed=blamed)
            show(self.found)
            if blamed:
                break
        self.leave()

    def agree(self, rung: str, *, works: bool) -> List[int]:
        """Tell the others how it went here; return the ranks where it broke, the same for all."""
        self.store.set("%s/%d" % (rung, self.plan["rank"]), "1" if works else "0")
        limit = self.plan["limits"][rung] + GRACE_SECONDS
        if self.plan["rank"] == 0:
            end = time.monotonic() + limit
            keys = ["%s/%d" % (rung, rank) for rank in range(self.plan["world"])]
            answers = [self._answer(key, max(end - time.monotonic(), 0.1)) for key in keys]
            blamed = [rank for rank, answer in enumerate(answers) if answer != "1"]
            self.store.set(rung, json.dumps(blamed))
            return blamed
        return list(json.loads(self._answer(rung, 2 * limit) or "[0]"))

    def leave(self) -> None:
        """Let the master keep the server until every node has its verdict."""
        rank, world = self.plan["rank"], self.plan["world"]
        self.store.set("left/%d" % rank, "1")
        if rank == 0:
            for other in range(world):
                self._answer("left/%d" % other, GRACE_SECONDS)

    def _answer(self, key: str, limit_s: float) -> str:
        """Wait for a value of the store; empty: none came."""
        try:
            self.store.wait([key], timedelta(seconds=limit_s))
            return str(self.store.get(key).decode())
        except Exception:  # noqa: BLE001  (torch raises other classes in other versions)
            return ""

    def sum_on_cpus(self) -> bool:
        """Sum across the nodes on the CPUs."""
        group = self._group("sum", "cpu", self.plan["rank"], self.plan["world"])
        self.found["sum"] = self._one("sum", lambda: all_reduce(group))
        return bool(self.found["sum"].get("right"))

    def try_gpus(self) -> bool:
        """Try each GPU of this node alone, all at once."""
        devices = {str(gpu): self._device(at) for at, gpu in enumerate(self.plan["gpus"])}
        work = {gpu: functools.partial(try_gpu, device) for gpu, device in devices.items()}
        tried = run_each(work, self.plan["limits"]["gpus"])
        self.found["gpus"] = [{**answer, "index": int(gpu)} for gpu, answer in tried.items()]
        return all(is_right(answer) for answer in tried.values())

    def run_dcgm(self) -> bool:
        """Let DCGM try what it can in seconds."""
        if not self.plan["dcgm"]:
            self.found["dcgm"] = {"state": "not-asked"}
            return True
        limit = self.plan["limits"]["dcgm"] - GRACE_SECONDS
        end = lambda: die_with_parent(signal.SIGTERM)  # noqa: E731
        self.found["dcgm"] = self._one("dcgm", lambda: dcgm.diagnose(limit, end))
        return not dcgm.is_broken(self.found["dcgm"])

    def sum_inside(self) -> bool:
        """Sum over the GPUs of this node."""
        count, name = len(self.plan["gpus"]), "inside/%d" % self.plan["rank"]
        groups = [self._group(name, self._device(at), at, count) for at in range(count)]
        work = {
            str(gpu): functools.partial(all_reduce, group)
            for gpu, group in zip(self.plan["gpus"], groups)
        }
        answers = run_each(work, self.plan["limits"]["inside"])
        self.found["inside"] = [{**answer, "index": int(gpu)} for gpu, answer in answers.items()]
        return all(answer.get("right") for answer in answers.values())

    def exchange_across(self) -> bool:
        """Sum across the nodes, and try each pair of them: the first GPU with all first ones, etc.

        All rails at once: a GPU whose own network card is dead borrows that of another GPU, and
        only then is slow. Without GPUs on every node, the CPUs do it.
        """
        rails = self.plan["rails"]
        rank, world = self.plan["rank"], self.plan["world"]
        devices = {gpu: self._device(at) for at, gpu in enumerate(self.plan["gpus"][:rails])}
        work = {}
        for at, (gpu, device) in enumerate((devices or {0: "cpu"}).items()):
            group = self._group("across/%d" % at, device, rank, world)
            work[str(gpu)] = functools.partial(all_reduce, {**group, "pairs": True})
        answers = run_each(work, self.plan["limits"]["across"])
        self.found["rails"] = [{**answer, "index": int(gpu)} for gpu, answer in answers.items()]
        return all(answer.get("right") for answer in answers.values())

    def _device(self, at: int) -> str:
        return "cuda:%d" % at if self.plan["device"] == "cuda" else "cpu"

    def _group(self, name: str, device: str, rank: int, world: int) -> Dict[str, Any]:
        limit = self.plan["limits"][name.partition("/")[0]] - GRACE_SECONDS
        where = {"address": self.plan["address"], "port": self.plan["port"], "limit_s": limit}
        return {"name": name, "device": device, "rank": rank, "world": world, **where}

    def _one(self, rung: str, work: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        return run_each({rung: work}, self.plan["limits"][rung])[rung]


def is_right(answer: Dict[str, Any]) -> bool:
    """Tell whether a GPU did all that it was asked for, without a wrong number."""
    return answer.get("wrong_numbers") == 0 and answer.get("wrong_copies") == 0


def run_each(
    work: Mapping[str, Callable[[], Dict[str, Any]]], limit_s: float
) -> Dict[str, Dict[str, Any]]:
    """Call each function in a child of its own, all at once; return the result of each.

    `state` is ok, error or timeout; after an error, `error` has its words.
    """
    parent = os.getpid()

    def body(function: Callable[[], Dict[str, Any]], write: Callable[[bytes], None]) -> None:
        die_with_parent(parent=parent)
        ask_nccl(os.environ)
        try:
            answer = {"state": "ok", **function()}
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
            answer = {"state": "error", "error": words_of(error)}
        write(b"\n" + json.dumps(answer).encode() + b"\n")

    children = [
        run_function(key, functools.partial(body, one), limit_s) for key, one in work.items()
    ]
    gather(children)
    return {child.key: outcome(child, limit_s) for child in children}


def outcome(child: Child, limit_s: float) -> Dict[str, Any]:
    """Return the answer among a child's lines, else how it ended; with the lines of NCCL."""
    text = child.output.decode("utf-8", "replace")
    lines = kept_lines(text)
    return {**_ending(child, text, limit_s), **({"nccl": lines} if lines else {})}


def _ending(child: Child, text: str, limit_s: float) -> Dict[str, Any]:
    if child.state == "timeout":
        return {"state": "timeout", "error": "no answer within %g s" % limit_s}
    for line in reversed(text.splitlines()):
        if not line.startswith('{"state": '):
            continue  # NCCL's threads may print after the answer
        try:
            return dict(json.loads(line))
        except ValueError:
            break
    words = child.stderr.decode("utf-8", "replace").strip() or "exit code %s" % child.exit_code
    return {"state": "error", "error": words[-ERROR_LIMIT:]}


def die_with_parent(death_signal: int = signal.SIGKILL, parent: int = 0) -> None:
    """Let the kernel end this process as soon as its parent has ended, however that happened."""
    try:
        import ctypes  # noqa: PLC0415  (some builds of Python lack it)

        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, death_signal)
    except (ImportError, AttributeError, OSError):
        return  # the limits remain
    if parent and os.getppid() != parent:
        os._exit(1)


def words_of(error: Exception) -> str:
    """Return an error with its class, which tells what torch's shortest texts do not."""
    return ("%s: %s" % (type(error).__name__, error))[:ERROR_LIMIT]


def show(found: Dict[str, Any]) -> None:
    """Print what is known; nothing printed is lost if this process is killed later."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
