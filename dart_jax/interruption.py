"""Ctrl-C in programs: one line and exit status 130, from the first import on.

Python's own way, a `KeyboardInterrupt`, would end an import in a traceback. So the packages of the
programs call `end_imports_quietly` in their `__init__.py`, and `dart_jax.programs.command_line`
lets `KeyboardInterrupt` in when the program's work begins. Nothing happens in a process that only
imports these packages. Imports nothing at the top but `os` and `sys`.
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

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, exit_now)


def exit_now(*_: object) -> None:
    """Ends the process; a handler of SIGINT."""
    os.write(2, b"interrupted\n")
    os._exit(STATUS)


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
