"""What is asked in a soak: a pool of different requests, and malformed ones."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np

from eval.serving.client.completion import PATH, Request

# Strings that occur in library code, early or late, and one that does not.
_STOPS = ("\n\n", "return", "self", "):\n", "    if ", "\x00 never")
# Longest prompt and answer.
_PROMPT, _ANSWER = 512, 192


def make_pool(text: np.ndarray, count: int, longest: int, seed: int) -> list[Request]:
    """Requests of random lengths: greedy and sampled, with stop strings and without.

    Args:
      text: tokens to cut prompts from, int [n].
      count: of requests.
      longest: most tokens of a prompt and its answer together.
      seed: of everything.
    """
    rng = np.random.default_rng(seed)
    prompts = _lengths(rng, min(_PROMPT, longest // 2), count)
    answers = _lengths(rng, min(_ANSWER, longest // 2), count)
    pool = []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        start = int(rng.integers(len(text) - prompt))
        stops = rng.choice(_STOPS, rng.integers(1, 3), replace=False) if number % 3 == 1 else ()
        pool.append(
            Request(
                tuple(map(int, text[start : start + prompt])),
                answer,
                temperature=0.0 if number % 2 else 0.8,
                seed=number,
                ignore_eos=number % 5 == 0,
                stop=tuple(map(str, stops)),
            )
        )
    return pool


def _lengths(rng: np.random.Generator, most: int, count: int) -> list[int]:
    """Lengths from 1 on, whose logarithms are uniform: short ones are as frequent as long ones."""
    return [round(math.exp(each)) for each in rng.uniform(0, math.log(most), count)]


class Malformed(NamedTuple):
    """What no server should accept.

    Attributes:
      what: is wrong with it.
      body: what is sent.
      method: HTTP's.
      path: where to.
    """

    what: str
    body: bytes
    method: str = "POST"
    path: str = PATH


def malformed(model: str, tokens: int) -> list[Malformed]:
    """All malformed requests.

    Args:
      model: the server's name of its model.
      tokens: more than the model has positions.
    """

    def changed(what: str, **fields: object) -> Malformed:
        content = {"model": model, "prompt": [1, 2, 3], "max_tokens": 4, **fields}
        return Malformed(what, json.dumps(content).encode())

    return [
        Malformed("no body", b""),
        Malformed("half of an object", b'{"prompt": "def'),
        Malformed("not an object", b'["prompt"]'),
        Malformed("not UTF-8", b'{"prompt": "\xff\xfe"}'),
        Malformed("no prompt", json.dumps({"model": model, "max_tokens": 4}).encode()),
        changed("a prompt that is an object", prompt={"text": "def"}),
        changed("an empty prompt", prompt=[]),
        changed("an id beyond the vocabulary", prompt=[1, 2**30]),
        changed("a negative id", prompt=[-1]),
        changed("an id that is no number", prompt=[1, "two"]),
        changed("a prompt that is too long", prompt=[1] * tokens),
        changed("a negative number of tokens", max_tokens=-1),
        changed("a number of tokens in words", max_tokens="many"),
        changed("a negative temperature", temperature=-1),
        changed("a temperature in words", temperature="hot"),
        changed("top_p above 1", top_p=1.5),
        changed("a stop string that is a number", stop=5),
        changed("no choices", n=0),
        changed("another model", model="no-such-model"),
        Malformed("no such path", b"{}", path="/v1/no-such-path"),
        Malformed("the wrong method", b"", method="DELETE"),
    ]
