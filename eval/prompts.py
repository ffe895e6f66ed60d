"""The demo benchmark: functions of library modules that no training step has seen.

The rule is fixed: per group, modules in the listed order give their next documented function in
turn, signature and docstring as it stands in the source, until enough are found that are short
enough.
"""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path

import numpy as np

from dart_jax.errors import UserError
from dart_jax.tokenizer import Tokenizer
from train.corpus import HELD_OUT, held_out_files, short_prompts, stdlib

# Modules of the training text, for warming up and choosing the tree size.
WARM_UP = ("argparse.py", "pathlib.py", "logging/handlers.py", "tarfile.py")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt of the benchmark."""

    group: str
    text: str
    tokens: np.ndarray


def demo_prompts(tokenizer: Tokenizer, per_group: int, max_tokens: int) -> list[Prompt]:
    """`per_group` prompts for each group of held-out modules."""
    return [
        prompt
        for group in HELD_OUT
        for prompt in _take(group, held_out_files(group), tokenizer, per_group, max_tokens)
    ]


def warm_up_prompts(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[Prompt]:
    """Prompts by the same rule from modules that the benchmark never reports."""
    files = [path for name in WARM_UP if (path := stdlib() / name).is_file()]
    return _take("warm-up", files, tokenizer, count, max_tokens)


def _take(
    group: str,
    files: list[Path],
    tokenizer: Tokenizer,
    count: int,
    max_tokens: int,
) -> list[Prompt]:
    short = short_prompts(files, tokenizer.encode, max_tokens)
    prompts = [Prompt(group, *prompt) for prompt in islice(short, count)]
    if not prompts:
        raise UserError(
            f"no documented function of the group {group!r} in {stdlib()} is within {max_tokens} "
            "tokens; this program needs the library's sources and a tokenizer made for text"
        )
    return prompts
