"""All programs by one command: `dart-jax NAME ...`, or `python -m dart_jax NAME ...`.

Without a name, lists them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import dart_jax
from dart_jax.errors import UserError, meant


class Program(NamedTuple):
    """A command-line program.

    Attributes:
      module: the module that `python -m` runs in a checkout; it, or its `__main__`, defines `main`.
      what: its task, as the list of programs says it.
    """

    module: str
    what: str


GROUPS = {
    "use": {
        "generate": Program("dart_jax.generate", "continue a prompt in the terminal"),
        "app": Program("dart_jax.app", "the same in a browser"),
        "serve": Program("dart_jax.serve", "the same for OpenAI's clients, many at once"),
        "fetch": Program("dart_jax.programs.fetch", "bring a model by its name, once"),
    },
    "measure": {
        "speedup": Program(
            "eval.speedup", "compare the speed of plain decoding, DART and other methods"
        ),
        "compare": Program("eval.compare", "compare two reports of speedup"),
        "lossless": Program("eval.lossless", "check that drafting does not change any token"),
        "latency": Program("eval.latency", "time a step against the hardware's limits"),
        "serving": Program("eval.serving", "compare a server drafted and plain"),
        "memory": Program("eval.memory", "show the memory that decoding with a model needs"),
        "peers": Program("eval.peers", "compare with other engines on this CPU"),
        "compile": Program("eval.compile", "show what a GPU or TPU would run"),
        "campaign": Program("eval.campaign", "measure a device: all of this, in a given time"),
    },
    "train": {
        "regenerate": Program(
            "train.regenerate", "let the target write the answers that a drafter is trained on"
        ),
        "train-drafter": Program("train.drafter", "train a drafter for a target"),
        "ngram": Program("train.ngram", "count, inspect and convert n-gram models"),
    },
}
PROGRAMS = {name: program for group in GROUPS.values() for name, program in group.items()}


def main() -> None:
    """Runs the program that the first argument names.

    A mistyped name ends in one line and exit status 2, as bad input does.
    """
    find_programs()
    # A module that was run keeps its own name here; a console script has its path.
    called = "python -m dart_jax" if sys.argv[0].endswith("__main__.py") else "dart-jax"
    name, *args = sys.argv[1:] or ["--help"]
    if name in PROGRAMS:
        # What the program's help and errors call it; see `command_line.command`.
        sys.argv = [f"{called} {name}", *args]
        find_main(PROGRAMS[name])()
        return
    from dart_jax.programs.command_line import program

    with program():
        if name in ("help", "-h", "--help"):
            print(overview(called))
        elif name == "--version":
            print(f"dart-jax {dart_jax.__version__}")
        else:
            raise UserError(f"no program {name!r}; {meant(name, PROGRAMS, f'{called} lists all')}")


def overview(called: str) -> str:
    """Lists the programs; `called` is the command that runs them."""
    width = max(map(len, PROGRAMS))
    lines = []
    for title, group in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {called} {name:{width}}  {each.what}" for name, each in group.items()]
    return "\n".join(
        [
            f"dart_jax {dart_jax.__version__}: DART speculative decoding in JAX",
            *lines,
            "",
            f"Each has --help. To get started: {called} generate 'def mean(values):'",
        ]
    )


def find_programs() -> None:
    """Puts the directory of `eval` and `train` first on the path, for this process only.

    In a wheel these packages lie below `dart_jax`, as their names are too general for the top of
    everybody's environment; in a checkout next to it.
    """
    package = Path(dart_jax.__file__).parent
    installed = package / "_programs"
    sys.path.insert(0, str(installed if installed.is_dir() else package.parent))


def find_main(program: Program) -> Callable[..., None]:
    """Imports the program and returns its `main`."""
    spec = importlib.util.find_spec(program.module)
    package = spec is not None and spec.submodule_search_locations is not None
    return importlib.import_module(program.module + (".__main__" if package else "")).main


if __name__ == "__main__":
    main()
