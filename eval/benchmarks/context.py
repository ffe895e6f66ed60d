"""Long prompts: a passage of Python's own documents before the question.

The passage is prose with examples that every Python brings along (`pydoc_data`): no download, the
same for all models up to their tokens, in no training data of ours, and no answer to any question.
The passages of a question are the ends of one text, so that those of 6,144 tokens end with those
of 512: what changes with the length is the length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pydoc_data.topics import topics

import numpy as np

from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.prompts import Prompt
from eval.benchmarks.questions import Question, prompt_tokens


def passage(
    number: int, tokenizer: Tokenizer, encode: Callable[[str], Sequence[int]], most: int
) -> str:
    """Returns the text that makes a prompt `most` tokens long, or a few less.

    Args:
      number: of the question, from 0: its passages end with another topic than its neighbours'.
      tokenizer: the target's.
      encode: text to be put before the question -> token ids of the whole prompt.
      most: the prompt's tokens; "" is returned for a prompt that has as many without it.
    """
    names = sorted(topics)
    ids: list[int] = []
    size = most - len(encode(""))
    while len(ids) < size:
        text = topics[names[number % len(names)]]
        ids = tokenizer.encode(text, add_special_tokens=False) + ids
        number -= 1
    while size > 0:
        text = tokenizer.decode(ids[-size:]).strip() + "\n\n"
        # Cut out of their text, and beside the question's, tokens may become others.
        if (beyond := len(encode(text)) - most) <= 0:
            return text
        size -= beyond
    return ""


def long_question(
    question: Question, number: int, tokenizer: Tokenizer, most: int, *, thinking: bool
) -> Question:
    """Puts a passage before a question's first turn, and before the text to continue.

    Args:
      question: the question.
      number: as for `passage`.
      tokenizer: the target's.
      most: tokens of the first turn's prompt; those of later turns are longer.
      thinking: as for `prompt_tokens`.
    """

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
