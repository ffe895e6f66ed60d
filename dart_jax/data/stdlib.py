"""The demo's text: the Python standard library of the running interpreter.

Some modules are held out of training and n-gram counting; the demo benchmark takes its prompts from
them.
"""

from __future__ import annotations

import ast
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

# Benchmark groups -> modules that are held out of training and n-gram counts.
HELD_OUT: dict[str, tuple[str, ...]] = {
    "text": ("textwrap", "difflib", "string", "shlex", "gettext"),
    "numbers": ("statistics", "fractions", "random", "calendar", "colorsys"),
    "files": ("shutil", "tempfile", "zipfile", "filecmp", "fnmatch", "glob"),
    "data": ("heapq", "bisect", "copy", "pprint", "configparser", "csv"),
}

# Tests, tables and generated files are skipped: they would outweigh the library's own code.
_SKIPPED_DIRECTORIES = frozenset(
    {
        "site-packages", "test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo",
        "pydoc_data", "encodings", "ensurepip", "__pycache__", "__phello__",
    }
)  # fmt: skip
_SKIPPED_PREFIXES = ("_sysconfigdata", "_test", "test_")


def stdlib() -> Path:
    """Returns the directory of the running interpreter's library."""
    return Path(sysconfig.get_paths()["stdlib"])


def held_out_files(group: str) -> list[Path]:
    """Returns the source files of one benchmark group, in the order of `HELD_OUT`."""
    return [path for module in HELD_OUT[group] for path in module_files(module)]


def training_files() -> list[Path]:
    """Returns all other library files, sorted by path."""
    held_out = {path for group in HELD_OUT for path in held_out_files(group)}
    files: list[Path] = []
    for directory, folders, names in os.walk(stdlib()):
        kept = {*folders} - _SKIPPED_DIRECTORIES
        folders[:] = [name for name in kept if not name.startswith("config-")]
        sources = (name for name in names if name.endswith(".py"))
        files += [Path(directory, n) for n in sources if not n.startswith(_SKIPPED_PREFIXES)]
    return sorted(path for path in files if path not in held_out)


def read(path: Path) -> str:
    """Returns the file's text; bad bytes in the few files that are not UTF-8 are replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


def module_files(module: str) -> list[Path]:
    """Returns the source files of a module or a package."""
    file, package = stdlib() / f"{module}.py", stdlib() / module
    return [file] if file.is_file() else sorted(package.rglob("*.py"))


def short_prompts(
    files: Sequence[Path], encode: Callable[[str], list[int]], most: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields documented functions, one from each file in turn, with their tokens, int [n].

    Args:
      files: in the order of their turns.
      encode: text -> token ids.
      most: maximum tokens of a prompt; longer ones are skipped.
    """
    by_file = (function_prompts(read(path)) for path in files)
    in_turn = (text for text in chain.from_iterable(zip_longest(*by_file)) if text)
    encoded = ((text, encode(text)) for text in in_turn)
    return ((text, np.array(ids)) for text, ids in encoded if len(ids) <= most)


def function_prompts(source: str) -> list[str]:
    """Returns every documented function of a module, cut after its docstring.

    A prompt is the function's lines from `def` (without decorators) to the docstring's closing
    quotes. Functions that consist only of a docstring are skipped: nothing is left to generate.
    """
    lines = source.split("\n")  # lines as `ast` counts them; splitlines also splits at form feeds
    prompts = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node) is None or len(node.body) < 2:
            continue
        end = node.body[0].end_lineno
        if end is not None:
            prompts.append("\n".join(lines[node.lineno - 1 : end]).rstrip())
    return prompts
