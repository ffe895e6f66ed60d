"""The demo's text: what is held out, the prompts cut from it, and sources of packages."""

import importlib.util
import textwrap
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

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
from train.recipes.language_model import PACKAGES, package_files

HELD_OUT_FILES = {path for group in HELD_OUT for path in held_out_files(group)}


@pytest.fixture(scope="module")
def byte_tokenizer():
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: n for n, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Tokenizer(tokenizer)


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
"""Module."""
import functools


@functools.cache
@decorated(
    by="lines")
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


def undocumented():
    return 1


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


@pytest.mark.parametrize("separator", ["\f", "\r\n"])
def test_only_line_ends_separate_lines(separator):
    source = f'# one{separator}# two\n\n\ndef f():\n    """Doc."""\n    return 1\n'
    assert function_prompts(source) == ['def f():\n    """Doc."""']


def test_groups_give_their_modules_in_turn(byte_tokenizer):
    by_group = {group: [] for group in HELD_OUT}
    for prompt in demo_prompts(byte_tokenizer, 3, 10**9):
        by_group[prompt.group].append(prompt)
    for group, prompts in by_group.items():
        files = held_out_files(group)
        first_of_each = [next(iter(function_prompts(read(path))), None) for path in files]
        assert [p.text for p in prompts] == [text for text in first_of_each if text][:3]


def test_demo_prompts():
    """The default benchmark: the same at every call, whole functions, enough of them."""
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


def test_files_are_sources_of_every_package_in_order():
    specs = {name: importlib.util.find_spec(name) for name in PACKAGES}
    places = {name: Path(spec.submodule_search_locations[0]) for name, spec in specs.items()}
    files, owners = package_files(), []
    assert len(files) == len(set(files))
    for path in files:
        [(name, root)] = [each for each in places.items() if path.is_relative_to(each[1])]
        owners.append(name)
        assert path.suffix == ".py"
        assert not {"test", "tests", "testing"}.intersection(path.relative_to(root).parts)
        assert not path.name.startswith("test_")
        assert not path.is_relative_to(places["transformers"] / "models")
    assert list(dict.fromkeys(owners)) == list(PACKAGES)


def test_a_package_that_is_missing(monkeypatch):
    monkeypatch.setattr(language_model, "PACKAGES", ("no_such_package",))
    with pytest.raises(UserError, match="needs the package no_such_package"):
        package_files()
