"""How far a run is: a bar on a terminal, plain lines elsewhere. Both go to the error stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0

Show = Callable[[int, str], None]  # (how many are done, what to say of it)


@contextmanager
def stage(console: Console | None, name: str, total: int, done: int = 0) -> Iterator[Show]:
    """Show a stage of a run while it lasts.

    Args:
        console: shows a bar if it is a terminal, else a line every ten seconds and a last one; None shows nothing.
        name: what is being done.
        total: how many steps, or images, it has.
        done: how many of them are done.
    """
    if console is None:
        yield lambda now, words: None
        return
    with (
        _bar(console, name, total, done)
        if console.is_terminal
        else _lines(console, name, total, done) as show
    ):
        yield show


@contextmanager
def _bar(console: Console, name: str, total: int, done: int) -> Iterator[Show]:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        task = progress.add_task(name, total=total, completed=done, words="")
        yield lambda now, words: progress.update(task, completed=now, words=words)


@contextmanager
def _lines(console: Console, name: str, total: int, done: int) -> Iterator[Show]:
    begun = last = time.monotonic()

    def show(now: int, words: str) -> None:
        nonlocal last
        moment = time.monotonic()
        if moment - last < _SECONDS_BETWEEN_LINES and now < total:
            return
        last = moment
        left = (moment - begun) / max(1, now - done) * (total - now)
        time_left = f"  {int(left) // 60}:{int(left) % 60:02} left" if now < total else ""
        console.print(f"{name} {now}/{total}{'  ' + words if words else ''}{time_left}", highlight=False)

    yield show
