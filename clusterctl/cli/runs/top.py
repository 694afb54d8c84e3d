"""`clusterctl top`: what a run and its nodes do, live."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.cli.shared.batch import batch_of, view_of_batch
from clusterctl.cli.shared.options import add_json
from clusterctl.cli.shared.run_option import EXIT_SILENT, add_run, open_run
from clusterctl.cli.shared.signals import Terminated
from clusterctl.errors import OLDER, ClusterError
from clusterctl.report.console import Screen
from clusterctl.report.status import show_status
from clusterctl.report.top.look import SORTS, Look, Target
from clusterctl.report.top.render import render
from clusterctl.verbs.events import Notice
from clusterctl.verbs.top.snapshot import Top

if TYPE_CHECKING:
    from clusterctl.api.run import Run
    from clusterctl.report.full_screen import FullScreen
    from clusterctl.verbs.top.top import Watcher

DRAW_SECONDS, JSON_SECONDS = 0.5, 2.0
LOG_LINES = 200
HELP = "q quit  ↑↓ move  Enter open  a all  f fold  s sort: {sort}  l log  d stacks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument(
        "--once", action="store_true", help="print it once, without keys, as text that stays"
    )
    parser.add_argument(
        "--sort", choices=SORTS, default=SORTS[0], help="the order of the nodes (default: worst)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Show it until q or until the run is over; 3 if a node of the run did not answer."""
    screen = Screen()
    found = batch_of(args)
    if found:
        view = view_of_batch(*found)
        if args.json:
            print(json.dumps(Top(time=time.time(), status=view, nodes=()).document()))
        else:
            show_status(screen, view)
        return 0
    out = screen.out
    live = not args.once and (args.json or (out.is_terminal and not out.is_dumb_terminal))
    with open_run(args) as opened:
        watcher = opened._watcher()  # noqa: SLF001  (not public: what only `top` shows)
        if not live:
            _print_once(args, screen, watcher.ask())
        elif args.json:
            _print_lines(watcher)
        else:
            _show(args, screen, opened, watcher)
        view = watcher.view()
    for one in view.nodes:
        if one.error and one.error.state == OLDER:
            raise ClusterError(
                f"{one.node.name}: {one.error}", hint=f"clusterctl status --watch {view.run}"
            )
    return EXIT_SILENT if view.silent or not view.known else 0


def _print_once(args: argparse.Namespace, screen: Screen, top: Top) -> None:
    if args.json:
        print(json.dumps(top.document()))
        return
    look = Look(width=screen.out.width, sort=args.sort, blocks=_has_blocks(screen))
    for line in render(top, look)[0]:
        screen.out.print(line)


def _print_lines(watcher: Watcher) -> None:
    due = 0.0
    for _ in watcher.follow():
        watcher.look_again()
        if watcher.complete and time.monotonic() >= due:
            print(json.dumps(watcher.snapshot().document()), flush=True)
            due = time.monotonic() + JSON_SECONDS
    print(json.dumps(watcher.snapshot().document()), flush=True)


def _show(args: argparse.Namespace, screen: Screen, opened: Run, watcher: Watcher) -> None:
    """Draw it until q; of a run that is over, print how it ended."""
    from clusterctl.report.full_screen import FullScreen  # noqa: PLC0415  (no text needs it)

    with FullScreen(screen.out) as full, closing(watcher.follow()) as moments:
        view = _View(full, opened, args.sort, blocks=_has_blocks(screen))
        for _ in moments:
            watcher.look_again()
            if view.goes_on(watcher):
                continue
            return
    show_status(screen, watcher.snapshot().status)


def _has_blocks(screen: Screen) -> bool:
    return not screen.out.legacy_windows and "utf" in screen.out.encoding.lower()


class _View:
    """What is drawn, and what the keys have changed."""

    def __init__(self, full: FullScreen, opened: Run, sort: str, *, blocks: bool) -> None:
        self._full, self._opened = full, opened
        self._look = Look(width=80, sort=sort, blocks=blocks)
        self._targets: list[Target] = []
        self._due = 0.0

    def goes_on(self, watcher: Watcher) -> bool:
        """Do what the keys say, and draw if it is time; False: q was pressed."""
        for key in self._full.pressed():
            if key == "q":
                return False
            self._press(key)
            self._due = 0.0
        if time.monotonic() >= self._due:
            self._draw(watcher.snapshot())
            self._due = time.monotonic() + DRAW_SECONDS
        return True

    def _draw(self, top: Top) -> None:
        width, height = self._full.console.size
        keys = HELP.format(sort=self._look.sort)
        self._look = replace(self._look, width=width, height=height, help=keys)
        lines, self._targets = render(top, self._look)
        last = max(0, len(self._targets) - 1)
        self._look = replace(self._look, selected=min(self._look.selected, last))
        self._full.show(lines)

    def _press(self, key: str) -> None:
        look = self._look
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
        if key in steps:
            last = max(0, len(self._targets) - 1)
            self._look = replace(look, selected=min(last, max(0, look.selected + steps[key])))
        elif key == "s":
            self._look = replace(look, sort=SORTS[(SORTS.index(look.sort) + 1) % len(SORTS)])
        elif key == "f":
            self._look = replace(look, fold={None: True, True: False, False: None}[look.fold])
        elif key == "a":
            self._look = replace(look, all_open=not look.all_open, open=frozenset())
        elif key in ("enter", " ") and self._target:
            name, *others = self._target.nodes
            opened = replace(look, open=look.open ^ {name})
            self._look = replace(look, fold=False) if others else opened
        elif key in ("l", "d") and self._target:
            with self._full.apart():
                (self._follow_log if key == "l" else self._dump)(self._target)

    @property
    def _target(self) -> Target | None:
        selected = self._look.selected
        return self._targets[selected] if selected < len(self._targets) else None

    def _follow_log(self, target: Target) -> None:
        """Print a log until Ctrl-C."""
        import sys  # noqa: PLC0415

        from clusterctl.report.follow import EventPrinter  # noqa: PLC0415
        from clusterctl.report.lines import Prefixed  # noqa: PLC0415
        from clusterctl.verbs.logs import LogQuery  # noqa: PLC0415

        screen = Screen()
        shown = EventPrinter(screen=screen, lines=Prefixed(sys.stdout))
        screen.say(Notice(text="the log as it grows; Ctrl-C returns to the view"))
        rank = ",".join(map(str, target.ranks)) or None
        query = LogQuery(follow=True, node=",".join(target.nodes), rank=rank, tail=LOG_LINES)
        try:
            with closing(self._opened._log_events(query, {})) as events:  # noqa: SLF001
                for event in events:
                    shown.show(event)
            _wait(screen)
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt, Terminated):
                raise
        except ClusterError as error:
            screen.say(Notice(text=str(error), level="warning"))
            _wait(screen)

    def _dump(self, target: Target) -> None:
        """Print the stacks of a rank, or of a node's."""
        from clusterctl.report.stacks.dump import show_dump  # noqa: PLC0415
        from clusterctl.verbs.dump.dump import DumpQuery  # noqa: PLC0415

        screen = Screen()
        rank = ",".join(map(str, target.ranks)) or None
        try:
            with screen.progress() as progress:
                query = DumpQuery(node=",".join(target.nodes), rank=rank)
                result = self._opened.dump(query, on_event=progress.show)
            show_dump(screen, result, every_thread=len(target.ranks) == 1, folder=None)
        except ClusterError as error:
            screen.say(Notice(text=str(error), level="warning"))
        _wait(screen)


def _wait(screen: Screen) -> None:
    """Let the user read what was printed."""
    screen.say(Notice(text="Enter returns to the view"))
    with suppress(EOFError):  # Ctrl-D
        input()
