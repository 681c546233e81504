"""The terminal: results on stdout; messages, log and progress on stderr.

The only file of the command line that prints. File names, texts and errors come from outside, so
everything printed passes `printable`: an escape sequence in a file name is shown, not obeyed.
"""

import dataclasses
import json
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucofia.errors import SettingError

if TYPE_CHECKING:
    from ucofia.progress import Progress

CLEAR_LINE = "\r\x1b[K"
PLAIN_SECONDS = 10.0  # between two lines of progress where no bar can be drawn
PACE_STEPS = 30  # last reports, from which the time left is estimated

# C0 and C1 controls, surrogates, line separators, and formats that reorder or hide text; not
# U+200C and U+200D, which several scripts and emoji need.
_FORMATS = "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
_UNPRINTABLE = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff{_FORMATS}]")
_UNPRINTABLE_IN_JSON = re.compile(f"[\x7f-\x9f\ud800-\udfff{_FORMATS}]")


def printable(text: str) -> str:
    """Escape what a terminal would interpret or cannot show: control and format characters.

    >>> printable("a\\x1b[31m\\n\\u202eb.mp4")
    'a\\\\x1b[31m\\\\n\\\\u202eb.mp4'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def show(*lines: str) -> None:
    """Print results to stdout, one line per argument."""
    print(*map(printable, lines), sep="\n", flush=True)


def show_json(value: Any) -> None:
    """Print a result as JSON; what `printable` escapes is escaped as JSON does."""
    found = _UNPRINTABLE_IN_JSON.sub(lambda char: json.dumps(char[0])[1:-1], as_json(value))
    print(found, flush=True)


def print_message(*lines: str) -> None:
    """Print messages to stderr, one line per argument."""
    print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)


class _LogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_message(*self.format(record).split("\n"))


def configure_log(verbose: int) -> None:
    """Show warnings of the package's log; from 1 on its progress, from 2 on its details."""
    handler = _LogHandler()
    handler.setFormatter(logging.Formatter("ucofia: %(message)s"))
    if verbose:
        about = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(about, "%H:%M:%S"))
    log = logging.getLogger("ucofia")
    log.handlers[:] = [handler]
    log.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])


def as_json(value: Any) -> str:
    """Write dataclasses, and what they hold, as JSON."""
    return json.dumps(value, default=_plain, indent=2, ensure_ascii=False)


@contextmanager
def loading(what: str = "loading the model") -> Iterator[None]:
    """Show a message on a terminal while something loads; imports alone take seconds."""
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.write(f"{what} ...")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write(CLEAR_LINE)
        sys.stderr.flush()


@contextmanager
def progress_bar(*, quiet: bool = False, in_bytes: bool = False) -> "Iterator[Progress | None]":
    """Yield a progress callback that draws one bar per stage, with the time left.

    Without a terminal it prints a line every few seconds.

    Args:
        quiet: Yield None, so that nothing is shown.
        in_bytes: Whether counts are bytes, which are written as MB.
    """
    if quiet:
        yield None
        return
    written: Callable[[int], str] = size_text if in_bytes else str
    if not sys.stderr.isatty():
        yield _plain_progress(written)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[count]}", markup=False),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[left]}", markup=False),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        tasks: dict[str, bars.TaskID] = {}
        paces: dict[str, Pace] = {}

        def report(what: str, done: int, total: int | None) -> None:
            what = printable(what)
            stage = what.split()[0]  # "epoch 3 loss 0.71" continues the bar of "epoch 2 ..."
            if stage not in tasks:
                tasks[stage] = drawn.add_task(what, total=total, count="", left="")
                paces[stage] = Pace()
            drawn.update(
                tasks[stage],
                description=what,
                completed=done,
                total=total,
                count=f"{written(done)}/{written(total)}" if total else "",
                left=paces[stage].left(done, total),
            )

        yield report


def size_text(count: int) -> str:
    """Write a number of bytes as people read it.

    >>> size_text(0), size_text(83_506_384), size_text(2_687_186), size_text(3_200_000_000)
    ('0 MB', '84 MB', '2.7 MB', '3.2 GB')
    """
    if count >= 10**9:
        return f"{count / 10**9:.1f} GB"
    return f"{count / 10**6:.{1 if 0 < count < 10**7 else 0}f} MB"


def _plain_progress(written: Callable[[int], str]) -> "Progress":
    """Return a callback that prints a line of progress every `PLAIN_SECONDS`."""
    printed_at = time.monotonic()
    paces: dict[str, Pace] = {}

    def report(what: str, done: int, total: int | None) -> None:
        nonlocal printed_at
        left = paces.setdefault(what.split()[0], Pace()).left(done, total)
        if time.monotonic() - printed_at >= PLAIN_SECONDS:
            printed_at = time.monotonic()
            counted = f": {written(done)}" if done else " ..."
            if total:
                counted = f": {written(done)} of {written(total)}"
            print_message(what + counted + (left and f", {left}"))

    return report


class Pace:
    """Estimates the time left of a stage from its recent pace."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=PACE_STEPS)

    def left(self, done: int, total: int | None, *, now: float | None = None) -> str:
        """Take one report of progress, and return the time left in words; "" while unknown.

        >>> pace = Pace()
        >>> pace.left(0, 40, now=0.0), pace.left(1, 40, now=5.0), pace.left(40, 40, now=9.0)
        ('', 'about 3 min left', '')
        """
        now = time.monotonic() if now is None else now
        if not self._steps or done != self._steps[-1][1]:
            self._steps.append((now, done))
        began, before = self._steps[0]
        gone = done - before
        if not total or gone <= 0 or done >= total:
            return ""
        return f"about {_duration((total - done) * (now - began) / gone)} left"


def _duration(seconds: float) -> str:
    """Write a time that is only estimated, in one unit."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def lines(path: Path) -> list[str]:
    """Read a UTF-8 file of texts, one per line; at least one."""
    try:
        found = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        rule = f"it cannot be read as a text file ({error})"
        raise SettingError("file of texts", str(path), rule) from error
    texts = [line for line in found if line]
    if not texts:
        raise SettingError("file of texts", str(path), "there is no text in it")
    return texts


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if not callable(getattr(value, field.name))
        }
    if isinstance(value, (Path, os.PathLike)):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # an array or a number of numpy or torch, neither imported here
        return value.tolist()
    raise TypeError(f"{type(value)} cannot be written as JSON")
