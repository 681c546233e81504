"""The command `ucofia`: arguments -> one library call -> print.

Results go to stdout, messages and progress to stderr. Heavy imports stand inside the commands, so
that `ucofia --help` is fast. Exit codes: 0 success, 1 an error of ours in one line, 2 wrong usage,
3 no match.
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import Any

import typer

from ucofia.cli import (
    ablate as ablate,
    bench as bench,
    data as data,
    demo as demo,
    doctor as doctor,
    eval as eval,
    figure as figure,
    index as index,
    models as models,
    score as score,
    search as search,
    serve as serve,
    setup as setup,
    train as train,
)
from ucofia.cli.app import add_panels, app
from ucofia.cli.console import CLEAR_LINE, print_message, printable
from ucofia.errors import UCoFiAError, UCoFiAWarning

add_panels()

# The base of all errors of usage, which typer does not export by name.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
INTERRUPTED = 130
RETRY_SECONDS = 0.05  # between two looks whether an import has ended
SHOW_CURSOR = "\x1b[?25h"
INTERRUPTED_TEXT = "ucofia: interrupted; what was finished is kept."
GENERAL_OPTIONS = ("-v", "-vv", "--verbose", "--debug")
_plain_warning = warnings.formatwarning


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; our own errors, and those of files, are one line and exit code 1."""
    warnings.formatwarning = _warning
    # Read when torch is imported: OpenMP threads that wait then sleep instead of spinning, which
    # is much faster where other processes use the cores as well.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal of another encoding shows escapes
            stream.reconfigure(errors="backslashreplace")
    general, words = _split(sys.argv[1:] if argv is None else argv)
    try:
        with _interruptible_imports():
            result = app(args=[*general, *words], standalone_mode=False)
    except UCoFiAError as error:
        return _failed(str(error), "--debug" in general)
    except BrokenPipeError:  # the reader of our output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return _failed(f"{where}{error.strerror or error}", "--debug" in general)
    except _UsageError as error:
        error.message = printable(_explained(error.message))  # type: ignore[attr-defined]
        error.show()  # type: ignore[attr-defined]
        return 2
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    if result == INTERRUPTED:  # typer makes it of an interrupt in the middle of a command
        print_message(INTERRUPTED_TEXT)
    return result if isinstance(result, int) else 0


@contextmanager
def _interruptible_imports() -> Iterator[None]:
    """Let Ctrl-C end the process at once while a module is being imported.

    Libraries that are interrupted while they set themselves up swallow the exception, or abort.
    While files are added, Ctrl-C waits for the end of the import: what is encoded is committed.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        at, is_importing, is_adding = frame, False, False
        while at is not None:
            is_importing |= at.f_code.co_filename.startswith("<frozen importlib")
            is_adding |= at.f_globals.get("__name__") == "ucofia.index.ingest"
            at = at.f_back
        if not is_importing:
            signal.default_int_handler(number, frame)
        elif is_adding:
            again = threading.Timer(RETRY_SECONDS, _interrupt, (threading.get_ident(), number))
            again.daemon = True
            again.start()
        else:
            shown = CLEAR_LINE + SHOW_CURSOR if os.isatty(2) else ""  # a progress bar hides it
            os.write(2, f"{shown}{INTERRUPTED_TEXT}\n".encode())
            os._exit(INTERRUPTED)

    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(thread: int, number: int) -> None:
    """Send a signal to the main thread, also where it waits; `os.kill` ends it on Windows."""
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:
        signal.pthread_kill(thread, number)


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the general options, which may stand anywhere before `--`, from other words."""
    end = argv.index("--") if "--" in argv else len(argv)
    general = [word for word in argv[:end] if word in GENERAL_OPTIONS]
    return general, [word for word in argv[:end] if word not in GENERAL_OPTIONS] + list(argv[end:])


def _explained(message: str) -> str:
    """Add advice to typer's message about extra words: most often quotes are missing."""
    if not message.startswith("Got unexpected extra argument"):
        return message
    words = message.partition(" (")[2].removesuffix(")")
    return f"{words!r} is one too many. Texts and names with spaces stand in quotes."


def _failed(message: str, with_traceback: bool) -> int:
    if with_traceback:
        print_message(*traceback.format_exc().rstrip().split("\n"))
    print_message(f"ucofia: {message}")
    return 1


def _warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
    """Write our own warnings as one line, without the place in the source."""
    if issubclass(category, UCoFiAWarning):
        return f"ucofia: {printable(str(message))}\n"
    return _plain_warning(message, category, *where, **more)
