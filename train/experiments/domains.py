"""Training data without one family of modules, and prompts to judge drafters on in and out of it.

What the demo's target wrote does not say which module its prompt is from; the library's sources do.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dart_jax.data.records import find_files, records
from dart_jax.data.stdlib import function_prompts, module_files, read
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from train.data.examples import Tokens, parse

Prompt = tuple[int, ...]


class Domains(NamedTuple):
    """Data and prompts.

    Attributes:
      all: file of the training data.
      without: file of those that are not of the family.
      inside: prompts of the family, int32 [n] each, that are in neither.
      outside: others.
    """

    all: Path
    without: Path
    inside: list[np.ndarray]
    outside: list[np.ndarray]


def split(
    data: Sequence[str],
    family: str,
    encode: Callable[[str], list[int]],
    directory: Path,
    prompts: int,
) -> Domains:
    """Reads answers of `train.regenerate` and writes both sets, unless they are there already.

    Args:
      data: files, as for `train.drafter`.
      family: a module or package of the standard library.
      encode: text -> token ids.
      directory: of the two sets.
      prompts: kept for judging, inside and outside; of the family at most half.

    Raises:
      UserError: the data are no answers, or none of them are of the family.
    """
    answers = list(_answers(data))
    texts = (text for file in module_files(family) for text in function_prompts(read(file)))
    ours = {tuple(encode(text)) for text in texts}
    there = {prompt for prompt, _ in answers}
    if len(there & ours) < 2 or there <= ours:
        raise UserError(
            f"--family {family}: {len(there & ours)} of {len(there)} prompts in {', '.join(data)} "
            "are its functions; name a module or package that has some of them, with the Python "
            "that the data were made with"
        )
    inside = heapq.nsmallest(min(prompts, len(there & ours) // 2), there & ours, key=_digest)
    outside = heapq.nsmallest(prompts, there - ours, key=_digest)
    judged = {*inside, *outside}
    training = [(prompt, value) for prompt, value in answers if prompt not in judged]
    return Domains(
        _write(directory / "all.jsonl", [value for _, value in training]),
        _write(directory / "without.jsonl", [v for prompt, v in training if prompt not in ours]),
        [np.array(prompt, np.int32) for prompt in inside],
        [np.array(prompt, np.int32) for prompt in outside],
    )


def _answers(data: Sequence[str]) -> Iterator[tuple[Prompt, dict]]:
    """Prompts, and the records they are from."""
    for file in find_files(data):
        for record in records(file):
            try:
                content = parse(record.value)
            except UserError as error:
                raise UserError(f"{record.where}: {error}") from None
            if not isinstance(content, Tokens):
                raise UserError(
                    f"{record.where}: no answer of train.regenerate, whose prompts this "
                    "experiment tells apart"
                )
            yield tuple(content.tokens[: content.prompt_length]), record.value


def _digest(prompt: Prompt) -> bytes:
    return hashlib.sha256(json.dumps(prompt).encode()).digest()


def _write(path: Path, values: list[dict]) -> Path:
    """A file that is the same is left alone: its time tells prepared data whether they are its."""
    content = "".join(json.dumps(value) + "\n" for value in values).encode()
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)
    return path
