"""The command line of every program: options in, one line out when something is wrong.

    def main(args: Sequence[str] | None = None) -> None:
        with program():
            run(parse(RunConfig, args, __doc__))

| what happens | stderr | exit status |
|---|---|---|
| bad input, in the options or later | `error: ...`, one line | 2 |
| a part of the input is not used | `warning: ...`, one line | |
| Ctrl-C | `interrupted`, one line | 130 |
| the reader of the output closes it (`... | head -1`) | nothing | 141 |
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import io
import itertools
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import tyro

from dart_jax import interruption
from dart_jax.errors import InputWarning, UserError

RESUMABLE = "run the same command again to continue"

_SOON = 0.02  # seconds
_CLOSED_PIPE = 141  # 128 + SIGPIPE, as shells report it


@dataclasses.dataclass
class Advice:
    """What is left after Ctrl-C and what to do, such as `RESUMABLE`; changes as a program works."""

    text: str = ""


@contextlib.contextmanager
def program(advice: str = "") -> Iterator[Advice]:
    """Wraps a program's `main`, and ends the process as the table above says.

    Args:
      advice: the advice that is yielded, to begin with.
    """
    after = Advice(advice)
    try:
        with _interruptible(), _warnings_of_one_line():
            yield after
            _flush()
    except KeyboardInterrupt:
        interruption.say_interrupted(after.text)
        if _prepared():
            # At once: threads may still compile or compute, which crash or delay an orderly end.
            _drop_unwritable()
            os._exit(interruption.STATUS)
        sys.exit(interruption.STATUS)
    except UserError as error:
        _drop_unwritable()
        _end(error)
    except BrokenPipeError:
        _drop_unwritable()
        sys.exit(_CLOSED_PIPE)
    except OSError as error:
        # Errors of named files are not ours; neither are other errors of unnamed ones.
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _drop_unwritable()
        _end(f"cannot write to standard output: {error.strerror}")
    except SystemExit as end:
        closed = _drop_unwritable() and not end.code  # short help was still in the buffer
        if closed or isinstance(end.__context__, BrokenPipeError):  # Rich makes it status 1
            sys.exit(_CLOSED_PIPE)
        raise


@contextlib.contextmanager
def _warnings_of_one_line() -> Iterator[None]:
    """Prints an `InputWarning` without the place in the code; other warnings as Python does."""
    show = warnings.showwarning

    def one_line(message: Any, category: type[Warning], *place: Any, **options: Any) -> None:
        if issubclass(category, InputWarning):
            print("warning:", message, file=sys.stderr)
        else:
            show(message, category, *place, **options)

    warnings.showwarning = one_line
    try:
        yield
    finally:
        warnings.showwarning = show


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raises `KeyboardInterrupt` in the block, even if what was interrupted hides it.

    Only in a process that `interruption` has prepared; elsewhere, Ctrl-C is not ours.
    """
    if not _prepared():
        yield
        return

    def interrupt(*_: object) -> None:
        interruption.ending = True
        raise KeyboardInterrupt

    def unraisable(report: Any) -> None:
        # Raised in a destructor or a callback, where it would be printed and forgotten.
        if isinstance(report.exc_value, KeyboardInterrupt):
            _interrupt_again()
        else:
            sys.__unraisablehook__(report)

    sys.unraisablehook = unraisable
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if interruption.ending:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, interruption.exit_now)


def _interrupt_again() -> None:
    """Interrupts the main thread once more, soon: what it works at can then keep its results."""
    main = threading.main_thread().ident
    assert main is not None
    try:
        threading.Timer(_SOON, signal.pthread_kill, (main, signal.SIGINT)).start()
    except RuntimeError:  # the interpreter is about to end
        interruption.exit_now()


def _prepared() -> bool:
    """Whether `interruption` has prepared this process: it belongs to the program."""
    return signal.getsignal(signal.SIGINT) is interruption.exit_now


def _flush() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()


def _drop_unwritable() -> bool:
    """Flushes the output, and drops what cannot be written: the interpreter would try it again.

    Returns whether a reader has gone.
    """
    closed = False
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None if closed from the start
        try:
            stream.flush()
        except OSError as error:
            closed |= isinstance(error, BrokenPipeError)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
    return closed


def _end(message: object) -> None:
    print("error:", " ".join(str(message).split("\n")), file=sys.stderr)
    sys.exit(2)


def command() -> str:
    """The command that started this process, as its user typed it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec else "dart_jax"
    # `dart_jax.__main__` puts the command there.
    return Path(sys.argv[0]).name if module == "dart_jax" else f"python -m {module}"


def parse(kind: Any, args: Sequence[str] | None, description: str | None, **options: Any) -> Any:
    """Reads a command line.

    Args:
      kind: the dataclass of the options, or a union of subcommands.
      args: the words; None takes those that the process was started with.
      description: shown by `--help`.
      options: further arguments of `tyro.cli`.

    Returns:
      An instance of `kind`.

    Raises:
      UserError: a word is wrong or missing; or as `kind`.
    """
    args = sys.argv[1:] if args is None else list(args)
    # Off is written by leaving an option out, not as `None`; a switch has one name.
    config = (tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff)
    options = {"prog": command(), "description": description, "config": config} | options
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return tyro.cli(kind, args=args, **options)
    except SystemExit as end:
        if not end.code:
            raise
    subcommand = [word for word in args[:1] if not word.startswith("-")]  # or a first argument
    shown = _printed(kind, [*subcommand, "--help"], options)
    usage = re.match(r"usage: (.*?) \[", shown)
    lists_all = f"{usage[1] if usage else command()} --help lists all"
    raise UserError(f"{_mistake(args, shown, _printed(kind, args, options))} ({lists_all})")


def check_least(options: Any, **least: float) -> None:
    """Checks that numbers among a dataclass's options are large enough.

    Args:
      options: the dataclass.
      least: option -> least number, also of each of several; None is not checked.

    Raises:
      UserError: one is not.
    """
    for name, minimum in least.items():
        value = getattr(options, name)
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int | float) and number < minimum for number in numbers):
            raise UserError(f"--{name.replace('_', '-')} must be at least {minimum}")


def check_some(options: Any, *names: str) -> None:
    """Raises UserError if one of a dataclass's options that take several values has none."""
    for name in names:
        if not getattr(options, name):
            raise UserError(f"--{name.replace('_', '-')} needs at least one value")


def _mistake(args: Sequence[str], shown: str, report: str) -> str:
    """Says in one line what is wrong with a command line that `tyro` rejects.

    Args:
      args: the words.
      shown: the help text.
      report: what `tyro` says.
    """
    listed = re.findall(r"│ ((?:-\w, )?--[\w-]+(?:, --[\w-]+)*)", shown)
    known = {name for names in listed for name in names.split(", ")}
    for word in itertools.takewhile(lambda word: word != "--", args):
        name = "--" + word[2:].partition("=")[0].replace("_", "-")
        if word.startswith("--") and known and name not in known:
            return f"unrecognised option {name}{did_you_mean(name, known)}"
    return _reworded(report)


def _printed(kind: Any, args: Sequence[str], options: dict[str, Any]) -> str:
    """What tyro prints for these words: in boxes, without colours, and in lines of any length."""
    text = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        mock.patch.dict(os.environ, COLUMNS="10000"),
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
        contextlib.suppress(SystemExit),
    ):
        tyro.cli(kind, args=args, **options)
    text.seek(0)
    return text.read()


# What tyro reports -> what it means.
_REWORDED = {
    r"Missing value for argument '(.+?)'\. .*": "{0} needs a value",
    r"invalid choice '(.*)' for argument '(.+?)'\. Expected one of \((.*?),?\)\.": (
        "{1} is one of {2}; got '{0}'"
    ),
    r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)": (
        "{0} takes a whole number, got {1}"
    ),
    r"Error parsing (\S+): could not convert string to float: (.*)": "{0} takes a number, got {1}",
    r"Error parsing (\S+): no type matching INT could .*? from \[(.*?)\]\..*": (
        "{0} takes a whole number, got {1}"
    ),
    r"Error parsing (\S+): no type matching FLOAT could .*? from \[(.*?)\]\..*": (
        "{0} takes a number, got {1}"
    ),
    r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]": (
        "{0} does not take {1}"
    ),
    r"Error parsing (\S+): (.*)": "{0}: {1}",
    r"Expected one of \{(.*)\}\.": "missing command: {0}",
}


def _reworded(report: str) -> str:
    """The mistake in tyro's report: the text in its box, up to the first rule."""
    lines = [line.strip(" │") for line in report.splitlines()[1:-1]]
    rules = [place for place, line in enumerate(lines) if line.startswith("──")]
    text = " ".join(lines[: rules[0]] if rules else lines)
    if "Missing from" in text:
        missing = [line for line in lines if re.fullmatch(r"--[\w-]+ .*|\[?[A-Z-]+( .*)?", line)]
        return "missing " + " and ".join(line.split()[0] for line in missing)
    if text.startswith("Unrecognized options: "):
        word = text.removeprefix("Unrecognized options: ").split(", ")[0]
        commands = [line.partition("subcommands: ")[2] for line in lines if "subcommands: " in line]
        if commands:
            return f"no command {word!r}{did_you_mean(word, commands[0].split(', '))}"
        return f"unexpected argument {word!r}"
    for pattern, meaning in _REWORDED.items():
        if found := re.fullmatch(pattern, text):
            return meaning.format(*found.groups())
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the known word that is most like this one, if any is."""
    bare = {name.lstrip("-"): name for name in known}
    found = difflib.get_close_matches(word.lstrip("-"), bare, n=1)
    return f"; did you mean {bare[found[0]]}?" if found else ""
