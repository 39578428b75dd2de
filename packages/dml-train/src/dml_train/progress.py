"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0

Show = Callable[[int, str], None]  # (number done, text to show with it)


def say(console: Console, text: str) -> None:
    """Print text without folding long lines, so that users can copy a command from it."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def stage(console: Console | None, name: str, total: int, done: int = 0) -> Iterator[Show]:
    """Show the progress of a stage of a run.

    Args:
        console: on a terminal, shows a bar; elsewhere, a line every ten seconds and when done; None
            shows neither.
        name: the name of the stage.
        total: number of steps or images.
        done: number of steps or images that are already done.
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
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        task = progress.add_task(name, total=total, completed=done, text="")
        yield lambda now, text: progress.update(task, completed=now, text=text)


@contextmanager
def _lines(console: Console, name: str, total: int, done: int) -> Iterator[Show]:
    start = last = time.monotonic()

    def show(now: int, text: str) -> None:
        nonlocal last
        moment = time.monotonic()
        if moment - last < _SECONDS_BETWEEN_LINES and now < total:
            return
        last = moment
        left = (moment - start) / max(1, now - done) * (total - now)
        time_left = f"  {int(left) // 60}:{int(left) % 60:02} left" if now < total else ""
        console.print(
            f"{name} {now}/{total}{'  ' + text if text else ''}{time_left}", highlight=False
        )

    yield show
