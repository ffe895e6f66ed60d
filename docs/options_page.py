"""The page of all options, made of the command lines of the programs themselves."""

from __future__ import annotations

import argparse
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import tyro

from dart_jax.__main__ import PROGRAMS, find_main, find_programs
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.options import OPTIONS
from dart_jax.programs.processes import DistributedConfig

ROOT = Path(__file__).parents[1]
PAGE = "options.md"
INTRODUCTION = "# Options\n\nAlso `dart-jax NAME --help` lists the options of a program."

# Options that several programs have, described once: heading -> their dataclass.
SHARED = {"Choosing a model": ModelChoice, "Several processes": DistributedConfig}


class Option(NamedTuple):
    """An option, or a value that is typed without a name.

    Attributes:
      name: as it is typed, with its value.
      default: empty where there is none, or where the description says it.
      description: one line.
    """

    name: str
    default: str
    description: str


class _Reached(BaseException):
    """A program has come to its command line, which it would read."""


def pages() -> dict[str, str]:
    """Returns the page, by its path below `docs`."""
    config = (tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff)  # as most programs
    shared = {title: _options(_parser(kind, config)) for title, kind in SHARED.items()}
    commands = {command: options for name in PROGRAMS for command, options in options_of(name)}
    parts = [INTRODUCTION]
    for title, common in shared.items():
        users = [command for command, options in commands.items() if _has(options, common)]
        links = ", ".join(f"[{command}](#{_anchor(command)})" for command in users)
        parts += [f"## {title}", f"Options of {links}.", _table(common)]
    for command, options in commands.items():
        parts += [f"## {command}", f"Task: {PROGRAMS[command.split()[0]].what}."]
        for title, common in shared.items():
            if _has(options, common):
                link = f"[{title.lower()}](#{_anchor(title)})"
                parts.append(f"The options for {link} belong to this program, too.")
                described = {(_first(option), *option[1:]) for option in common}
                options = [each for each in options if (_first(each), *each[1:]) not in described]
        parts += [_table(options)] * bool(options)
    return {PAGE: "\n\n".join(parts) + "\n"}


def _has(options: list[Option], common: list[Option]) -> bool:
    return {*map(_first, common)} <= {*map(_first, options)}


def _first(option: Option) -> str:
    """The name without its value, and without the name that turns a switch off."""
    return option.name.split()[0]


def options_of(name: str) -> list[tuple[str, list[Option]]]:
    """Returns the options of a program, or of each of its subcommands by its name."""

    def reached(kind: Any, **options: Any) -> None:
        raise _Reached(kind, options["config"])

    find_programs()
    with mock.patch.object(tyro, "cli", reached):
        try:
            find_main(PROGRAMS[name])([])
        except _Reached as command_line:
            parser = _parser(*command_line.args)
        else:
            raise RuntimeError(f"{name} reads no command line by tyro.cli")
    for action in parser._actions:
        if isinstance(action.choices, dict):  # subcommands
            return [(f"{name} {sub}", _options(each)) for sub, each in action.choices.items()]
    return [(name, _options(parser))]


def _parser(kind: Any, config: Any = ()) -> argparse.ArgumentParser:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return tyro.extras.get_parser(kind, config=config, registry=OPTIONS)


def _options(parser: argparse.ArgumentParser) -> list[Option]:
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [_option(action) for action in shown if "--help" not in action.option_strings]


def _option(action: argparse.Action) -> Option:
    # The help ends with the default if it says anything, or that a value is needed.
    text = " ".join((action.help or "").split())
    description, end = re.fullmatch(r"(.*?)(?: \((default: .*|required)\))?", text).groups()
    default = (end or "").removeprefix("default: ").replace(f"{ROOT}/", "")
    if action.nargs == 0 and action.option_strings:
        default = "on" if default == "True" else "off"
    value = "" if action.metavar is None else str(action.metavar)
    name = " or ".join(action.option_strings)
    return Option(f"{name} {value}".strip(), default, description)


def _table(options: list[Option]) -> str:
    lines = ["| option | default | |", "|---|---|---|"]
    for name, default, description in options:
        shown = f"`{default}`" if default else ""
        lines.append(f"| `{name}` | {shown} | {_text(description)} |")
    return "\n".join(lines)


def _text(description: str) -> str:
    """A description as Markdown."""
    text = re.sub(r"([\\*_<|\[\]])", r"\\\1", description)
    return re.sub(r"`[^`]*`|(?<![\w-])--[a-z][a-z-]*", _code, text)


def _code(found: re.Match[str]) -> str:
    plain = found[0].strip("`").replace("\\", "")
    return f"`{plain}`"


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")
