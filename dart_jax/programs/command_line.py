"""The command line of every program: options in, one line out when something is wrong.

    def main(args: Sequence[str] | None = None) -> None:
        with program():
            run(parse(RunConfig, args, __doc__))

| event | stderr | exit status |
|---|---|---|
| a word that is no option, or no value of it | tyro's message | 2 |
| bad input, in values or later | `error: ...`, one line | 2 |
| a part of the input is not used | `warning: ...`, one line | |
| Ctrl-C, once the program is imported | `interrupted`, one line | 130 |
| the reader of the output closes it (`... | head -1`) | nothing | 141 |
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tyro

from dart_jax.errors import InputWarning, UserError
from dart_jax.programs.options import OPTIONS, Wrapped

RESUMABLE = "run the same command again to continue"

# As shells report them: 128 + SIGINT, 128 + SIGPIPE.
_INTERRUPTED, _CLOSED_PIPE = 130, 141


@dataclasses.dataclass
class Advice:
    """The rest of the line after Ctrl-C, such as `RESUMABLE`; changes as a program works."""

    text: str = ""


@contextlib.contextmanager
def program(advice: str = "") -> Iterator[Advice]:
    """Wraps a program's `main`, and ends the process as the table above says.

    Args:
      advice: the advice that is yielded, to begin with.
    """
    current = Advice(advice)
    try:
        try:
            with _warnings_of_one_line():
                yield current
        finally:
            print(end="", flush=True)
    except UserError as error:
        print("error:", " ".join(str(error).split("\n")), file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The interpreter would flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_CLOSED_PIPE)
    except KeyboardInterrupt:
        _interrupted(current)
    except Exception:
        # Libraries and XLA's callbacks turn a KeyboardInterrupt into exceptions of their own.
        if "KeyboardInterrupt" in traceback.format_exc():
            _interrupted(current)
        raise


def _interrupted(advice: Advice) -> NoReturn:
    """Ends the process at once: threads may still compile or compute, which crash or delay an
    orderly end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("; ".join(filter(None, ("interrupted", advice.text))), file=sys.stderr, flush=True)
    os._exit(_INTERRUPTED)


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


def command() -> str:
    """Returns the command that started this process, as its user typed it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec else "dart_jax"
    # `dart_jax.__main__` puts the command there.
    return Path(sys.argv[0]).name if module == "dart_jax" else f"python -m {module}"


def parse(kind: Any, args: Sequence[str] | None, description: str | None, **options: Any) -> Any:
    """Reads a command line; ends the process with tyro's message if a word is wrong or missing.

    Args:
      kind: the dataclass of the options, or a union of subcommands.
      args: the words, by default the process's arguments.
      description: shown by `--help`.
      options: further arguments of `tyro.cli`.

    Returns:
      An instance of `kind`.

    Raises:
      UserError: as `kind`.
    """
    # Off is written by leaving an option out, not as `None`; a switch has one name.
    config = (tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff)
    if description is not None:
        options["description"] = Wrapped(description)
    options = {"prog": command(), "config": config, "registry": OPTIONS} | options
    return tyro.cli(kind, args=args, **options)


def check_least(options: Any, **least: float) -> None:
    """Checks that numbers among a dataclass's options are large enough.

    Args:
      options: the dataclass.
      least: option -> least number, also of each of several. None is not checked.

    Raises:
      UserError: one is not.
    """
    for name, minimum in least.items():
        value = getattr(options, name)
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(minimum <= n < float("inf") for n in numbers if isinstance(n, int | float)):
            raise UserError(f"--{name.replace('_', '-')} must be at least {minimum}")


def check_some(options: Any, *names: str) -> None:
    """Raises UserError if one of a dataclass's options that take several values has none."""
    for name in names:
        if not getattr(options, name):
            raise UserError(f"--{name.replace('_', '-')} needs at least one value")
