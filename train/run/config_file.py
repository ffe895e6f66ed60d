"""Recipes in TOML files: command-line options by name, grouped into any tables.

    target = "Qwen/Qwen3-1.7B"
    [objective]
    gamma = 0.6

A recipe counts as if its options stood before those of the command line, which override it.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from dart_jax.errors import UserError
from dart_jax.programs import command_line

T = TypeVar("T")


def parse(cls: type[T], args: Sequence[str] | None, description: str | None) -> T:
    """Reads a command line as `command_line.parse`, on top of the file given by a leading
    `--config FILE`; raises UserError also if that cannot be read."""
    args = sys.argv[1:] if args is None else list(args)
    first, _, name = (args or [""])[0].partition("=")
    if first == "--config" and (name or len(args) > 1):
        path, args = Path(name or args[1]), args[1 if name else 2 :]
    else:
        path = None
    if any(word.partition("=")[0] == "--config" for word in args):
        raise UserError("--config FILE goes first, and only once")
    words = [] if path is None else _words(_read(path))  # the last one of an option counts
    # A recipe may turn a switch on that is off by default: every switch has both forms.
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)
    try:
        return command_line.parse(cls, [*words, *args], description, config=config)
    except UserError as error:
        raise UserError(f"with {path}: {error}" if path else str(error)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from None
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        for option, setting in (value if isinstance(value, dict) else {name: value}).items():
            key = option.replace("-", "_")
            if key in flat:
                raise UserError(f"{path}: {option} is given twice")
            flat[key] = setting
    return flat


def _words(values: Mapping[str, Any]) -> list[str]:
    """Returns the options as words of a command line."""
    words: list[str] = []
    for name, value in values.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list):
            words += [f"--{option}", *map(str, value)]
        else:
            words.append(f"--{option}={value}")
    return words
