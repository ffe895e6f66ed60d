"""Recipes in TOML files: command-line options by name, grouped into any tables.

    target = "Qwen/Qwen3-1.7B"
    [objective]
    gamma = 0.6

The command line overrides the file.
"""

from __future__ import annotations

import dataclasses
import sys
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from dart_jax.errors import UserError
from dart_jax.programs import command_line

T = TypeVar("T")


def parse(cls: type[T], args: Sequence[str] | None, description: str | None) -> T:
    """Reads the command line, on top of the file given by a leading `--config FILE`.

    Args:
      cls: a dataclass of options and nested option dataclasses.
      args: the command line; None takes the one that the process was started with.
      description: for `--help`.

    Raises:
      UserError: the file cannot be read, an option in it is unknown or has the wrong type, or as
        `command_line.parse`.
    """
    values: dict[str, Any] = {}
    path = None
    args = sys.argv[1:] if args is None else list(args)
    if args and args[0].startswith("--config="):
        args = ["--config", args[0].removeprefix("--config="), *args[1:]]
    if args[:1] == ["--config"] and len(args) > 1:
        path, args = Path(args[1]), args[2:]
        values = _read(path)
    if any(word.partition("=")[0] == "--config" for word in args):
        raise UserError("--config FILE goes first, and only once")
    default = _fill(cls, values)
    if values:
        raise UserError(f"{path}: unknown options {', '.join(values)}; --help lists all options")
    # A recipe may turn a switch on that is off by default: every switch has both forms.
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)
    return command_line.parse(cls, args, description, default=default, config=config)


def replace(config: Any, options: Mapping[str, Any]) -> Any:
    """Returns the config with these options replaced by name, at any level of nesting."""
    changed = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            changed[field.name] = replace(value, options)
        elif field.name in options:
            changed[field.name] = options[field.name]
    return dataclasses.replace(config, **changed)


def options(config: Any) -> dict[str, Any]:
    """Returns the values of a config and those nested in it, by option name."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        nested = dataclasses.is_dataclass(value)
        flat |= options(value) if nested else {f"--{field.name.replace('_', '-')}": value}
    return flat


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
        inner = value if isinstance(value, dict) else {name: value}
        for option, given in inner.items():
            key = option.replace("-", "_")
            if key in flat:
                raise UserError(f"{path}: {option} is given twice")
            flat[key] = tuple(given) if isinstance(given, list) else given
    return flat


def _fill(cls: Any, values: dict[str, Any]) -> Any:
    """Builds an instance, popping its values from the dictionary; tyro supplies missing ones."""
    hints = typing.get_type_hints(cls, include_extras=True)
    made: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        kind, option = hints[field.name], field.name
        if typing.get_origin(kind) is typing.Annotated:
            kind, *notes = typing.get_args(kind)
            named = [note.name for note in notes if getattr(note, "name", None)]
            option = named[0].replace("-", "_") if named else option
        required = field.default is field.default_factory is dataclasses.MISSING
        if dataclasses.is_dataclass(kind):
            made[field.name] = _fill(kind, values)
        elif option in values:
            made[field.name] = _convert(kind, option, values.pop(option))
        elif required:
            made[field.name] = tyro.MISSING
    return cls(**made)


def _convert(kind: Any, name: str, value: Any) -> Any:
    """Converts a TOML value to the option's type."""
    many = typing.get_origin(kind) is tuple
    inner = typing.get_args(kind)[0] if many else kind
    union = typing.get_origin(inner) in (types.UnionType, typing.Union)
    kinds = typing.get_args(inner) if union else (inner,)

    def one(value: Any) -> Any:
        for each in kinds:
            if typing.get_origin(each) is typing.Literal:
                if value in typing.get_args(each):
                    return value
            elif each is Path and isinstance(value, str):
                return Path(value)
            elif type(value) is each:
                return value
            elif each is float and isinstance(value, int) and not isinstance(value, bool):
                return float(value)
        raise UserError(f"the file has {name} = {value!r}, which has the wrong type; see --help")

    if many:
        return tuple(map(one, value if isinstance(value, tuple) else (value,)))
    return one(value)
