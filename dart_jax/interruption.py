"""Ctrl-C in programs: one line and exit status 130, from the first import on.

Python's own way, a `KeyboardInterrupt`, would end an import in a traceback. So the packages of the
programs call `end_imports_quietly` in their `__init__.py`, and `dart_jax.programs.command_line`
lets `KeyboardInterrupt` in again when the program's work begins. Nothing happens in a process that
only imports these packages.
"""

from __future__ import annotations

import os
import sys

STATUS = 130  # 128 + SIGINT, as shells report it
PACKAGES = ("dart_jax", "eval", "train")


def end_imports_quietly() -> None:
    """Makes Ctrl-C end this process at once, if it is starting `python -m` of a program of ours."""
    # While Python imports the packages around the module to run, this is the only argument.
    if sys.argv[:1] != ["-m"]:
        return
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if module.split(".")[0] in PACKAGES:
        end_at_once()


def end_at_once() -> None:
    """Makes Ctrl-C end this process in one line, without running anything else of it.

    Unless Ctrl-C was ignored when the process was started, as in a background job of a script.
    """
    import signal

    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, exit_now)
    except KeyboardInterrupt:  # just before
        exit_now()


def exit_now(*_: object) -> None:
    """Handler of SIGINT, and of interruptions that nothing else can report."""
    say_interrupted()
    os._exit(STATUS)


# Whether Ctrl-C has raised `KeyboardInterrupt` and the program is to end; see `go_on`.
ending = False

_said = False


def say_interrupted(advice: str = "") -> None:
    """Writes the line on stderr, once; a second Ctrl-C adds nothing.

    Args:
      advice: what to do next, in the same line.
    """
    global _said
    if not _said:
        _said = True
        line = f"interrupted; {advice}\n" if advice else "interrupted\n"
        import contextlib

        with contextlib.suppress(OSError):
            os.write(2, line.encode())


def go_on() -> None:
    """Takes an interruption back: its `KeyboardInterrupt` was caught, and the program goes on."""
    global ending
    ending = False


class HeldBack:
    """Holds Ctrl-C back in this thread; processes started in the block never receive it.

    They inherit the signal mask. Their parent handles the interruption, once.
    """

    def __enter__(self) -> None:
        import signal

        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def __exit__(self, *error: object) -> None:
        import signal

        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
