"""The demo's text: the Python standard library of the running interpreter.

Some modules are held out of everything that is trained or counted; the demo benchmark draws its
prompts from them.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

# Benchmark groups -> modules that no training step and no n-gram count ever sees.
HELD_OUT: dict[str, tuple[str, ...]] = {
    "text": ("textwrap", "difflib", "string", "shlex", "gettext"),
    "numbers": ("statistics", "fractions", "random", "calendar", "colorsys"),
    "files": ("shutil", "tempfile", "zipfile", "filecmp", "fnmatch", "glob"),
    "data": ("heapq", "bisect", "copy", "pprint", "configparser", "csv"),
}

# Tests, tables and generated text would drown the library's own style.
_SKIPPED_DIRECTORIES = frozenset(
    {
        "site-packages", "test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo",
        "pydoc_data", "encodings", "ensurepip", "__pycache__", "__phello__",
    }
)  # fmt: skip
_SKIPPED_PREFIXES = ("_sysconfigdata", "_test", "test_")


def stdlib() -> Path:
    """Where the running interpreter keeps its library."""
    return Path(sysconfig.get_paths()["stdlib"])


def held_out_files(group: str) -> list[Path]:
    """Source files of one benchmark group, in the order of the list above."""
    return [path for module in HELD_OUT[group] for path in module_files(module)]


def training_files() -> list[Path]:
    """Every other library file, sorted by its path below the library."""
    held_out = {path for group in HELD_OUT for path in held_out_files(group)}
    root = stdlib()
    return [path for path in sorted(root.rglob("*.py")) if path not in held_out and _wanted(path)]


def read(path: Path) -> str:
    """The file's text; library files are UTF-8 but for a few, whose stray bytes are replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


def module_files(module: str) -> list[Path]:
    """Source files of a module, or of a package and all in it."""
    file, package = stdlib() / f"{module}.py", stdlib() / module
    return [file] if file.is_file() else sorted(package.rglob("*.py"))


def _wanted(path: Path) -> bool:
    below = path.relative_to(stdlib())
    return (
        not _SKIPPED_DIRECTORIES.intersection(below.parts[:-1])
        and not below.parts[0].startswith("config-")
        and not path.name.startswith(_SKIPPED_PREFIXES)
    )


def short_prompts(
    files: Sequence[Path], encode: Callable[[str], list[int]], most: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Documented functions of files, in turn one of each, with their tokens, int [n].

    Args:
      files: in the order of their turns.
      encode: text -> token ids.
      most: tokens of a prompt; longer ones are left out.
    """
    by_file = (function_prompts(read(path)) for path in files)
    in_turn = (text for text in chain.from_iterable(zip_longest(*by_file)) if text)
    encoded = ((text, encode(text)) for text in in_turn)
    return ((text, np.array(ids)) for text, ids in encoded if len(ids) <= most)


def function_prompts(source: str) -> list[str]:
    """Every documented function of a module, cut behind its docstring.

    A prompt is the function's lines from `def` (decorators left out) to the docstring's closing
    quotes. Functions whose body is the docstring alone are left out: nothing remains to be written.
    """
    lines = source.split("\n")  # as `ast` counts them; splitlines also splits at form feeds
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
