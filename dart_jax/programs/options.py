"""Options of a command line, from a dataclass: their order, and their help.

A field's docstring is an option's help. What a program does comes before what it loads: options of
a class that has a `GROUP`, such as `ModelChoice`, stand last where another class inherits them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import shutil
import textwrap
from itertools import pairwise
from typing import Annotated, Any, cast, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

# Attribute of a class, whose options stand last, in a group of that name, in those that inherit it.
GROUP = "GROUP"

_WIDEST = 100  # columns of a description
_UNSAID = ("None", "False", "")  # defaults that say nothing
_HINT = tyro.conf.arg(help_behavior_hint=lambda x: "" if x in _UNSAID else f"(default: {x})")
OPTIONS = ConstructorRegistry()


@OPTIONS.struct_rule
def _of_dataclass(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Returns the options of a dataclass, for `tyro`."""
    kind = info.type
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return None
    if hasattr(kind, "__parameters__"):  # what `tyro` itself makes for subcommands
        return None
    shared = next((base for base in kind.__mro__[1:] if GROUP in vars(base)), None)
    inherited = set() if shared is None else {field.name for field in dataclasses.fields(shared)}
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    fields = [
        StructFieldSpec(
            name=field.name,
            type=cast(Any, Annotated[hints[field.name], _HINT]),
            default=_default(field, info.default),
            helptext=functools.partial(help_of, kind, field.name),
        )
        for field in dataclasses.fields(kind)
        if field.name not in inherited
    ]
    if shared is None:
        return StructConstructorSpec(instantiate=kind, fields=tuple(fields))
    name = vars(shared)[GROUP]
    group = StructFieldSpec(name=name, type=OmitArgPrefixes[shared], default=shared())

    def instantiate(**values: Any) -> Any:
        return kind(**vars(values.pop(name)), **values)

    return StructConstructorSpec(instantiate=instantiate, fields=(*fields, group))


def _default(field: dataclasses.Field[Any], instance: Any) -> Any:
    """Returns an option's default: that of an instance, or if there is none the class's."""
    if dataclasses.is_dataclass(instance):
        return getattr(instance, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return tyro.MISSING if field.default is dataclasses.MISSING else field.default


def help_of(kind: type, name: str) -> str | None:
    """Returns the docstring of a dataclass's field in one line, or None if it has none."""
    for base in kind.__mro__:
        if name in (docs := _docstrings(base)):
            return docs[name]
    return None


@functools.cache
def _docstrings(kind: type) -> dict[str, str]:
    """Returns the docstrings of a class's fields, each in one line."""
    module = importlib.import_module(kind.__module__)
    if not hasattr(module, "__file__"):
        return {}
    classes = (x for x in ast.walk(_parsed(module)) if isinstance(x, ast.ClassDef))
    body = next((each.body for each in classes if each.name == kind.__name__), [])
    docs = {}
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match after:
                case ast.Expr(ast.Constant(str(text))):
                    docs[field.target.id] = " ".join(text.split())
    return docs


@functools.cache
def _parsed(module: Any) -> ast.Module:
    return ast.parse(inspect.getsource(module))


class Wrapped(str):
    """A description whose paragraphs fit the terminal, and whose indented lines are as they were.

    `tyro` joins the lines of other texts by rules of its own.
    """

    def __new__(cls, text: str) -> Wrapped:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        paragraphs = inspect.cleandoc(text).split("\n\n")
        return super().__new__(cls, "\n\n".join(_fill(each, width) for each in paragraphs))

    def split(self, *_: Any) -> list[str]:
        """Returns the whole: there are no lines to join."""
        return [str(self)]


def _fill(paragraph: str, width: int) -> str:
    if paragraph.startswith(" "):
        return paragraph
    return textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)
