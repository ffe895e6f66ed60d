"""Prompts: the demo benchmark, and the published ones as the model is asked them.

The demo benchmark is of functions of library modules that no training step has seen. The rule is
fixed: per group, modules in the listed order give their next documented function in turn, signature
and docstring as it stands in the source, until enough are found that are short enough.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from dart_jax.data.stdlib import HELD_OUT, held_out_files, short_prompts, stdlib
from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.questions import Question, tokens

# Modules of the training text, for warming up and choosing the tree size.
WARM_UP = ("argparse.py", "pathlib.py", "logging/handlers.py", "tarfile.py")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt of the benchmark."""

    group: str
    text: str
    tokens: np.ndarray


def demo_prompts(tokenizer: Tokenizer, per_group: int, max_tokens: int) -> list[Prompt]:
    """`per_group` prompts for each group of held-out modules, or fewer if there are no more."""
    return [
        prompt
        for group in HELD_OUT
        for prompt in _take(group, held_out_files(group), tokenizer, per_group, max_tokens)
    ]


def warm_up_prompts(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[Prompt]:
    """`count` prompts, or fewer, by the same rule from modules that the benchmark never reports."""
    files = [path for name in WARM_UP if (path := stdlib() / name).is_file()]
    return _take("warm-up", files, tokenizer, count, max_tokens)


def asked(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    answer: Callable[[list[np.ndarray]], list[np.ndarray]],
    *,
    thinking: bool,
    batch: int,
) -> list[Prompt]:
    """Every turn of every question as a prompt, so that all methods are asked the same.

    Args:
      questions: of a benchmark.
      tokenizer: the target's.
      answer: token prompts -> the tokens that plain decoding gives for them; the answers to a
        question's turns stand in the prompts of its later ones.
      thinking: let a chat template's model think.
      batch: prompts answered together.
    """
    prompts: list[tuple[int, Prompt]] = []
    answers: list[list[str]] = [[] for _ in questions]
    for turn in range(max(len(question.turns) for question in questions)):
        open_ = [n for n, question in enumerate(questions) if turn < len(question.turns)]
        made = {n: tokens(questions[n], answers[n], tokenizer, thinking) for n in open_}
        prompts.extend(
            (n, Prompt(questions[n].group, questions[n].turns[turn], made[n])) for n in open_
        )
        followed = [n for n in open_ if turn + 1 < len(questions[n].turns)]
        for start in range(0, len(followed), batch):
            some = followed[start : start + batch]
            for n, new in zip(some, answer([made[n] for n in some]), strict=True):
                answers[n].append(tokenizer.decode(new.tolist()))
    return [prompt for _, prompt in sorted(prompts, key=lambda pair: pair[0])]


def in_batches(prompts: Sequence[Prompt], size: int) -> list[list[Prompt]]:
    """Prompts that are decoded together, in their order; only the last batch may not be full.

    A batch may hold prompts of several groups, so that those of small groups fill one too.
    """
    return [list(prompts[i : i + size]) for i in range(0, len(prompts), size)]


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
