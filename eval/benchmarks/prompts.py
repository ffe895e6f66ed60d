"""Prompts of the demo benchmark and of the published benchmarks.

The demo benchmark consists of functions of library modules that are held out of training. The rule
is fixed: for each group, its modules in the listed order provide their next documented function in
turn (signature and docstring, exactly as in the source) until there are enough short ones.
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
from eval.benchmarks.questions import Question, prompt_tokens

# Longest prompt of the demo benchmark.
PROMPT_TOKENS = 128

# Modules of the training text, for warm-up and for choosing the tree.
WARM_UP = ("argparse.py", "pathlib.py", "logging/handlers.py", "tarfile.py")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt of the benchmark."""

    group: str
    text: str
    tokens: np.ndarray


def demo_prompts(tokenizer: Tokenizer, per_group: int, max_tokens: int) -> list[Prompt]:
    """Returns `per_group` prompts, or fewer, for each group of held-out modules."""
    return [
        prompt
        for group in HELD_OUT
        for prompt in _first_prompts(group, held_out_files(group), tokenizer, per_group, max_tokens)
    ]


def warm_up_prompts(tokenizer: Tokenizer, count: int, max_tokens: int) -> list[Prompt]:
    """Returns `count` prompts, or fewer, by the same rule from modules of the training text."""
    files = [path for name in WARM_UP if (path := stdlib() / name).is_file()]
    return _first_prompts("warm-up", files, tokenizer, count, max_tokens)


def question_prompts(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    answer: Callable[[list[np.ndarray]], list[np.ndarray]],
    *,
    thinking: bool,
    batch: int,
) -> list[Prompt]:
    """Returns every turn of every question as a prompt, so that all methods get the same prompts.

    Args:
      questions: questions of a benchmark.
      tokenizer: the target's.
      answer: token prompts -> tokens that plain decoding generates for them; the answers to
        earlier turns are part of the prompts of later ones.
      thinking: enable thinking in the chat template.
      batch: prompts answered together.
    """
    prompts: list[list[Prompt]] = [[] for _ in questions]
    answers: list[list[str]] = [[] for _ in questions]
    for turn in range(max(len(question.turns) for question in questions)):
        for n, question in enumerate(questions):
            if turn < len(question.turns):
                tokens = prompt_tokens(question, answers[n], tokenizer, thinking)
                prompts[n].append(Prompt(question.group, question.turns[turn], tokens))
        more = [n for n, question in enumerate(questions) if turn + 1 < len(question.turns)]
        for start in range(0, len(more), batch):
            some = more[start : start + batch]
            for n, new in zip(some, answer([prompts[n][-1].tokens for n in some]), strict=True):
                answers[n].append(tokenizer.decode(new.tolist()))
    return [prompt for of_question in prompts for prompt in of_question]


def in_batches(prompts: Sequence[Prompt], size: int) -> list[list[Prompt]]:
    """Splits prompts into batches, in order; only the last one may be smaller.

    A batch may mix prompts of several groups, so that small groups do not leave batches unfilled.
    """
    return [list(prompts[i : i + size]) for i in range(0, len(prompts), size)]


def _first_prompts(
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
