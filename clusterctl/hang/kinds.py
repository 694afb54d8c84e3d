"""One small function for each reason why a run stands still; None: that is not the reason.

They are asked in the order of `verdict.KINDS`.
"""

import ipaddress
import shlex
from collections import Counter
from dataclasses import replace

from clusterctl.hang.doing import (
    Doing,
    at_work,
    in_driver,
    is_blind,
    is_own,
    on_mount,
    place,
    python_frames,
    spot,
    stopped,
    waits_for,
    waits_for_batch,
)
from clusterctl.hang.look import (
    Look,
    agree,
    blame,
    does,
    inside,
    lasting,
    named,
    says,
    since,
    who,
    whole_stack,
)
from clusterctl.logs.ranks import name_ranks
from clusterctl.logs.watchdog import BRANCHED
from clusterctl.model.dump import ProcessDump, ThreadStack
from clusterctl.model.verdict import Verdict

MUCH_SWAP = 256 << 20
"""Bytes of a rank in swap that slow it down."""
RETRANSMITS = 3
"""So often in a row the kernel sends the same again only if nothing gets through."""
MOST_PIDS = 64
"""Processes that one command continues."""
_PAIRS = frozenset(("send", "recv", "batch_isend_irecv"))
_RANK_LOGS = "clusterctl logs {} --rank {} shows what it printed last"
NETWORK = "clusterctl check --only network: it connects every node to every other"
_LOADER = "num_workers=0 shows the same in the rank itself; a timeout= of DataLoader ends it"


def stopped_rank(look: Look) -> Verdict | None:
    """Say that a rank or a worker of it is stopped."""
    found = [(one, process) for one in look.live if (process := _stopped(one))]
    if not found:
        return None
    ranks = [one for one, _ in found]
    (first, process), *_ = found
    here = dict.fromkeys(each.pid for one, each in found if one.node == first.node)
    pids = " ".join(map(str, list(here)[:MOST_PIDS]))
    process_of = "" if process is first.own else f"worker {process.pid} of "
    text = f"{process_of}{says(ranks, 'is stopped by a signal or a debugger')}"
    where = f" at {spot(first.where)}" if first.where else ""
    text = f"{text}{where}{lasting(ranks)}{look.others(ranks)}"
    remedy = f"clusterctl exec --nodes {shlex.quote(first.node)} -- kill -CONT {pids}"
    return blame("stopped", ranks, text, remedy)


def _stopped(one: Doing) -> ProcessDump | None:
    return next(filter(stopped, filter(None, (one.own, *one.workers))), None)


def ended_rank(look: Look) -> Verdict | None:
    """Say that a rank has ended while others run."""
    ranks = [one for one in look.ranks if one.dump.ended]
    if not ranks or not look.live or look.timed_out:
        return None
    rest = look.others(ranks) or f"; {name_ranks(one.rank for one in look.live)} still run"
    text = f"{says(ranks, 'has ended')}{rest}"
    return blame("ended", ranks, text, _RANK_LOGS.format(ranks[0].run, ranks[0].rank))


def storage(look: Look) -> Verdict | None:
    """Say that a rank for which the others wait, or a worker of it, gets no answer of a file."""
    found = [(one, thread) for one in look.apart or look.live if (thread := _on_storage(one))]
    if not found or (len(found) == len(look.live) > 1 and look.waiting):
        return None
    ranks = [one for one, _ in found]
    one, thread = found[0]
    frame = place(thread.frames)
    worker = "" if thread is one.main else "a data loader's worker of "
    what = waits_for(thread) or "waits for a disk or a file server"
    at = f" at {spot(frame)}" if frame and frame.file else ""
    stuck = f"{worker}{who(ranks)} {what if worker else agree(what, ranks)}"
    text = f"{stuck}{at}{lasting(ranks)}{look.others(ranks)}"
    nodes = ",".join(dict.fromkeys(one.node for one in ranks))
    remedy = f"clusterctl check --only storage --nodes {shlex.quote(nodes)}"
    return blame("storage", ranks, text, remedy, frame)


def _on_storage(one: Doing) -> ThreadStack | None:
    """Return the thread that waits for a file: the main one, or a worker's."""
    if one.operation:
        return None
    threads = (one.main, *filter(None, map(at_work, one.workers)))
    found = next((each for each in threads if on_mount(each) or each.state == "D"), None)
    if found is None or on_mount(found):
        return found
    # A GPU's driver keeps threads in state D, too, and so does memory that is read from swap.
    return None if in_driver(found) or _swapped(one) >= MUCH_SWAP else found


def network(look: Look) -> Verdict | None:
    """Say that what a rank sends is not taken by another node."""
    for one in look.live:
        for link in one.dump.connections:
            if link.retransmits < RETRANSMITS or not link.unacknowledged_bytes:
                continue
            claims = look.owners.get(link.peer, set())
            if not claims and look.apart:
                continue  # a server outside the cluster is no reason to wait for a rank
            peer = next(iter(claims)) if len(claims) == 1 else shown_address(link.peer)
            text = (
                f"{peer} does not acknowledge what {who([one])} sends to it"
                f" ({link.unacknowledged_bytes} bytes, sent {link.retransmits + 1} times)"
                f"{lasting([one])}; the rank waits {inside(one)}"
            )
            return replace(blame("network", [one], text, NETWORK), nodes=(one.node, peer))
    return None


def shown_address(text: str) -> str:
    """Return an address that a node told; no other words of it."""
    try:
        return str(ipaddress.ip_address(text[:64].partition("%")[0]))
    except ValueError:
        return "another machine"


def lock(look: Look) -> Verdict | None:
    """Say that threads of a rank wait for each other."""
    for one in look.apart:
        words = waits_for(one.main)
        waiting = [t for t in _own_threads(one) if waits_for(t) == words]
        if "lock" not in words or one.main not in waiting or len(waiting) < 2:  # noqa: PLR2004
            continue
        threads = " and ".join(
            f"{thread.name or thread.id} at {spot(place(thread.frames))}" for thread in waiting[:3]
        )
        text = (
            f"{len(waiting)} threads of {who([one])} wait for locks, probably each other's:"
            f" {threads}{lasting([one])}{look.others([one])}"
        )
        return blame("lock", [one], text, "take the locks in the same order in every thread")
    return None


def _own_threads(one: Doing) -> list[ThreadStack]:
    """Return the threads that are in the user's own code, and not in a library called by it."""
    threads = one.own.threads if one.own else ()
    innermost = ((thread, next(python_frames(thread.frames), None)) for thread in threads)
    return [thread for thread, frame in innermost if frame and is_own(frame)]


def data_loader(look: Look) -> Verdict | None:
    """Say that a rank waits for its data loader, and where its worker is."""
    ranks = [one for one in look.apart if waits_for_batch(one.main) and one.workers]
    if not ranks:
        return None
    loading = [(one, each) for one in ranks[0].workers if (each := at_work(one))]
    worker, frame = "", None
    if loading:
        process, thread = loading[0]
        frame = place(thread.frames)
        words = waits_for(thread) or "is"
        worker = f"; its worker {process.pid} {words} at {spot(frame)}"
    text = f"{says(ranks, 'waits for a batch')}{worker}{lasting(ranks)}"
    return blame("data-loader", ranks, f"{text}{look.others(ranks)}", _LOADER, frame)


def swap(look: Look) -> Verdict | None:
    """Say that a rank for which the others wait is in swap."""
    ranks = [one for one in look.apart if _swapped(one) >= MUCH_SWAP]
    if not ranks:
        return None
    size = f"{max(map(_swapped, ranks)) / (1 << 30):.1f} GiB"
    text = f"{says(ranks, 'is slow')}: {size} of memory is in swap{lasting(ranks)}"
    remedy = "use less host memory (fewer data workers, a smaller batch): free -m (on the node)"
    return blame(
        "swap", ranks, f"{text}; it is at {spot(ranks[0].where)}{look.others(ranks)}", remedy
    )


def _swapped(one: Doing) -> int:
    return sum(process.swap_bytes for process in one.dump.processes)


def order(look: Look) -> Verdict | None:
    """Say that all ranks wait, but in different collectives."""
    if look.apart or look.missing or not look.waiting:
        return None
    places = Counter(inside(one) for one in look.waiting)
    if len(places) == 1:
        return None
    (common, _), (rare, _) = places.most_common()[0], places.most_common()[-1]
    ranks = [one for one in look.waiting if inside(one) == rare]
    rest = [one for one in look.waiting if inside(one) == common]
    more = f"; {len(places) - 2} more places" if len(places) > 2 else ""  # noqa: PLR2004
    others = name_ranks(one.rank for one in rest)
    text = f"{says(ranks, 'waits')} {rare}, and {others} {common}{more}{lasting(ranks)}"
    pairs = {one.operation for one in look.waiting} & _PAIRS
    why = "they wait for each other" if pairs else "they took different branches"
    return blame("order", ranks, f"{text}: {why}, or are of different process groups", BRANCHED)


def absent_node(look: Look) -> Verdict | None:
    """Say that a node did not answer."""
    if not look.missing:
        return None
    text = f"{named(look.missing)} told no stacks: what its ranks do is unknown"
    if look.waiting:
        ranks = name_ranks(one.rank for one in look.waiting)
        text += f"; {ranks} {agree('waits', look.waiting)} {inside(look.waiting[0])}"
    nodes = shlex.quote(",".join(look.missing))
    found = blame("node", [], text, f"clusterctl check --nodes {nodes}")
    return replace(found, nodes=look.missing)


def elsewhere(look: Look) -> Verdict | None:
    """Say where the ranks are that do something else while the others wait."""
    apart = [one for one in look.apart if not is_blind(one)]
    if not apart:
        return None
    told = [(one, (spot(one.where), does(one))) for one in apart]
    common, _ = Counter(words for _, words in told).most_common(1)[0]
    ranks = [one for one, words in told if words == common]
    rest = [one for one, words in told if words != common]
    more = f" ({who(rest)} elsewhere)" if rest else ""
    throttled = [w for node in look.nodes if node.node == ranks[0].node for w in node.throttled]
    slowed = f", and its GPU is slowed down: {throttled[0]}" if throttled else ""
    where = common[0] or "an unknown place"
    text = f"{says(ranks, common[1])} at {where}{lasting(ranks)}{slowed}{more}"
    return blame("elsewhere", ranks, f"{text}{look.others(look.apart)}", whole_stack(ranks))


def all_busy(look: Look) -> Verdict | None:
    """Say that all ranks compute."""
    if not look.live or not all(one.busy for one in look.live) or look.missing:
        return None
    one = look.live[0]
    slowed = [words for node in look.nodes for words in node.throttled]
    more = f"; a GPU is slowed down: {slowed[0]}" if slowed else ""
    text = f"all ranks compute, such as rank {one.rank} at {spot(one.where)}: slow, not hung{more}"
    return Verdict(kind="slow", where=one.where, since_s=since([one]), text=text)


_ENVIRONMENT = (
    "let the program take its address, rank and world size from the environment"
    " (init_method='env://')"
)


def together(look: Look) -> Verdict | None:
    """Say that all ranks wait in one collective."""
    unseen = len(look.live) < len(look.ranks)
    if not look.waiting or look.apart or look.missing or unseen:
        return None
    one = look.waiting[0]
    meeting = one.operation == "init_process_group"
    end = "but they do not meet" if meeting else "and none is missing"
    text = f"all ranks wait {inside(one)}{lasting([one])}, {end}"
    remedy = f"{NETWORK}; for GPUs, clusterctl check --only accelerator"
    if meeting:
        remedy = f"{_ENVIRONMENT}; else {NETWORK}"
    return Verdict(kind="together", where=one.where, since_s=since([one]), text=text, remedy=remedy)
