"""Arguments of public functions: former names, near names, and values that their types allow."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from dart_jax.errors import UserError, meant

_Function = TypeVar("_Function", bound=Callable[..., Any])


def checked(**former: str) -> Callable[[_Function], _Function]:
    """Makes a function raise UserError for keywords that it lacks, and for values that are not of
    its annotated types; `former` names, old=new, are taken as well, but not both."""

    def checking(function: _Function) -> _Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for old in former.keys() & options.keys():
                if former[old] in options:
                    raise UserError(f"{old} is the former name of {former[old]}; pass one of them")
                options[former[old]] = options.pop(old)
            if unknown := sorted(options.keys() - signature.parameters.keys()):
                names = [*signature.parameters][1:]  # without self or cls
                cure = meant(unknown[0], names, f"the options are {', '.join(names)}")
                raise UserError(f"{function.__name__} has no option {unknown[0]}; {cure}")
            hints = get_type_hints(function)
            for name, value in signature.bind(*args, **options).arguments.items():
                if name in hints and not _fits(value, hints[name]):
                    raise UserError(f"{name} must be {_words(hints[name])}, got {value!r}")
            return function(*args, **options)

        return cast(_Function, call)

    return checking


def _fits(value: Any, hint: Any) -> bool:
    """True if a value may be of a type; also of one that cannot be checked."""
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    try:
        return isinstance(value, get_origin(hint) or hint)
    except TypeError:  # a protocol, or no type at all
        return True


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    names = [(get_origin(kind) or kind).__name__.replace("NoneType", "None") for kind in kinds]
    return " or ".join(names)
