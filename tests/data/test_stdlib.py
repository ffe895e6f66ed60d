"""The demo's text: what is held out, the prompts cut from it, and sources of packages."""

import textwrap

import pytest

from dart_jax.data.stdlib import (
    HELD_OUT,
    function_prompts,
    held_out_files,
    read,
    stdlib,
    training_files,
)
from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.prompts import PROMPT_TOKENS, demo_prompts
from eval.speedup.config import SpeedupConfig
from train.recipes import language_model
from train.recipes.language_model import package_files

HELD_OUT_FILES = {path for group in HELD_OUT for path in held_out_files(group)}


def test_files_that_are_trained_on():
    """Nothing that is held out, nor a copy of it; no tests, tables and installed packages."""
    for group, modules in HELD_OUT.items():
        places = {path.relative_to(stdlib()).parts[0] for path in held_out_files(group)}
        assert {name.removesuffix(".py") for name in places} == set(modules)
    files = training_files()
    assert files == sorted(set(files))
    assert len(files) > 300
    sizes = {path.stat().st_size for path in HELD_OUT_FILES}
    alike = (read(path) for path in files if path.stat().st_size in sizes)
    assert not {read(path) for path in HELD_OUT_FILES}.intersection(alike)
    below = [path.relative_to(stdlib()) for path in files]
    folders = {part for path in below for part in path.parts[:-1]}
    assert not folders & {"test", "tests", "site-packages", "encodings", "pydoc_data", "idlelib"}
    assert not [path for path in below if path.name.startswith(("test_", "_sysconfigdata"))]
    assert {"argparse.py", "_pydecimal.py"} <= {str(path) for path in below}


SOURCE = '''\
"""Module."""\f\r
@functools.cache
def decorated(a,
              b=1):
    """One line."""
    return a


async def later():
    """First.

    Second.
    """
    await something()


def only_documented():
    """Nothing to write."""


def not_a_docstring():
    f"""{1}"""
    return 1


class Thing:
    """Not a function."""

    def method(self):
        r"""Raw."""  # a comment
        def inner():
            "Quoted."
            return 2
        return inner
'''


def test_function_prompts():
    assert function_prompts(SOURCE) == [
        'def decorated(a,\n              b=1):\n    """One line."""',
        'async def later():\n    """First.\n\n    Second.\n    """',
        '    def method(self):\n        r"""Raw."""  # a comment',
        '        def inner():\n            "Quoted."',
    ]


def test_demo_prompts():
    """The default benchmark: the same at every call, whole functions, enough of them; the modules
    of a group take turns."""
    tokenizer = Tokenizer.load(DEMO / "target")
    prompts, again = (demo_prompts(tokenizer, SpeedupConfig().prompts, PROMPT_TOKENS) for _ in "12")
    assert [(p.group, p.text, p.tokens.tolist()) for p in prompts] == [
        (p.group, p.text, p.tokens.tolist()) for p in again
    ]
    assert list(dict.fromkeys(p.group for p in prompts)) == list(HELD_OUT)
    assert 24 <= len(prompts) <= SpeedupConfig().prompts * len(HELD_OUT)
    for prompt in prompts:
        assert textwrap.dedent(prompt.text).startswith(("def ", "async def "))
        assert tokenizer.decode(prompt.tokens.tolist()) == prompt.text
        assert 1 < len(prompt.tokens) <= PROMPT_TOKENS
    for group in HELD_OUT:
        of_files = [function_prompts(read(path)) for path in held_out_files(group)]
        owners = [
            next(n for n, texts in enumerate(of_files) if prompt.text in texts)
            for prompt in prompts
            if prompt.group == group
        ]
        assert owners[:2] == sorted({*owners[:2]})


def test_sources_of_packages(monkeypatch):
    files = package_files()
    assert len(files) == len(set(files)) > 1000
    assert {path.suffix for path in files} == {".py"}
    assert not [path for path in files if "tests" in path.parts or path.name.startswith("test_")]
    monkeypatch.setattr(language_model, "PACKAGES", ("no_such_package",))
    with pytest.raises(UserError, match="needs the package no_such_package"):
        package_files()
