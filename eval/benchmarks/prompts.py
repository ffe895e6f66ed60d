"""Prompts of the demo benchmark and of the published benchmarks, and long prompts.

The demo benchmark consists of functions of library modules that are held out of training: for each
group, its modules in the listed order provide their next documented function in turn (signature and
docstring, exactly as in the source) until there are enough short ones.

A long prompt has a passage before the question: prose with examples that every Python brings along
(`pydoc_data`), the same for all models up to their tokens, and no answer to any question. The
passages of a question are the ends of one text: what changes with the length is the length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np

from dart_jax.data.stdlib import HELD_OUT, held_out_files, short_prompts, stdlib
from dart_jax.errors import UserError, warn
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.questions import Question, prompt_tokens
from eval.benchmarks.registry import load_all

# Longest prompt of the demo benchmark.
PROMPT_TOKENS = 128


class Prompt(NamedTuple):
    """One prompt of the benchmark: its group, its text, and its tokens, int32 [P]."""

    group: str
    text: str
    tokens: np.ndarray


def demo_prompts(
    tokenizer: Tokenizer, per_group: int, max_tokens: int = PROMPT_TOKENS
) -> list[Prompt]:
    """Returns `per_group` prompts, or fewer, for each group of held-out modules; raises UserError
    if a group has no documented function within `max_tokens` tokens."""
    prompts: list[Prompt] = []
    for group in HELD_OUT:
        short = short_prompts(held_out_files(group), tokenizer.encode, max_tokens)
        some = [Prompt(group, *prompt) for prompt in islice(short, per_group)]
        if not some:
            raise UserError(
                f"no documented function of the group {group!r} in {stdlib()} is within "
                f"{max_tokens} tokens; this program needs the library's sources and a tokenizer "
                "made for text"
            )
        prompts += some
    return prompts


def question_prompts(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    answer: Callable[[np.ndarray], np.ndarray],
    *,
    thinking: bool,
) -> list[Prompt]:
    """Returns every turn of every question, from its first, as a prompt; `answer` maps one, int32
    [P], to the tokens of plain decoding, which are part of the prompts of later turns."""
    prompts: list[Prompt] = []
    for question in questions:
        answers: list[str] = []
        for n, turn in enumerate(question.turns):
            tokens = prompt_tokens(question, answers, tokenizer, thinking)
            if n >= question.first:
                prompts.append(Prompt(question.group, turn, tokens))
            if len(answers) + 1 < len(question.turns):
                answers.append(tokenizer.decode(answer(tokens).tolist()))
    return prompts


def first_prompts(
    bench: str | None, tokenizer: Tokenizer, data_dir: Path | None, limit: int
) -> list[Prompt]:
    """Returns the first turns of at most `limit` questions of each benchmark, or as many functions
    of each of the demo's groups; warns of benchmarks of `all` and `copy` that are missing, or are
    of later turns only. Arguments and errors as for `load_all`."""
    questions, left_out = load_all(bench, tokenizer, data_dir, limit)
    for reason in left_out:
        warn(reason)
    if not questions:
        return demo_prompts(tokenizer, limit)
    prompts: list[Prompt] = []
    for name, some in questions.items():
        if some[0].first:
            warn(f"{name} is left out: nothing here answers the turns before its prompts")
            continue
        prompts += [
            Prompt(each.group, each.turns[0], prompt_tokens(each, (), tokenizer, thinking=False))
            for each in some
        ]
    if not prompts:
        raise UserError(f"{bench} has no first turns; pass another benchmark")
    return prompts


def passage(
    number: int, tokenizer: Tokenizer, encode: Callable[[str], Sequence[int]], most: int
) -> str:
    """Returns the text that makes a prompt `most` tokens long, or a few less; "" if it is as long.
    `encode` maps a text before the question to the ids of the whole prompt; passages of questions
    with successive numbers, from 0, end with different topics."""
    names = sorted(topics)
    ids: list[int] = []
    size = most - len(encode(""))
    while len(ids) < size:
        text = topics[names[number % len(names)]]
        ids = tokenizer.encode(text, add_special_tokens=False) + ids
        number -= 1
    while size > 0:
        text = tokenizer.decode(ids[-size:]).strip() + "\n\n"
        # Cut out of their text, and next to the question's, tokens may become others.
        if (beyond := len(encode(text)) - most) <= 0:
            return text
        size -= beyond
    return ""


def long_question(
    question: Question, number: int, tokenizer: Tokenizer, most: int, *, thinking: bool
) -> Question:
    """Puts a passage before a question's first turn, whose prompt then has `most` tokens, and
    before the text to continue."""

    def after(text: str) -> Question:
        first, *others = question.turns
        raw = None if question.raw is None else text + question.raw
        return dataclasses.replace(question, turns=(text + first, *others), raw=raw)

    encode = lambda text: prompt_tokens(after(text), (), tokenizer, thinking).tolist()  # noqa: E731
    return after(passage(number, tokenizer, encode, most))


def long_prompt(prompt: Prompt, number: int, tokenizer: Tokenizer, most: int) -> Prompt:
    """Puts a passage before a prompt of plain text; arguments as for `long_question`."""
    encode = lambda text: tokenizer.encode(text + prompt.text)  # noqa: E731
    text = passage(number, tokenizer, encode, most)
    return Prompt(prompt.group, text + prompt.text, np.array(encode(text), np.int32))
