"""Training data without one family of modules, and evaluation prompts inside and outside it.

The demo target's answers do not say which module their prompt is from; it is looked up in the
library's sources.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dart_jax.data.contents import Tokens, read_contents
from dart_jax.data.records import find_files, refuse
from dart_jax.data.stdlib import function_prompts, module_files, read
from dart_jax.errors import UserError
from dart_jax.files import write_atomically

Prompt = tuple[int, ...]


class Domains(NamedTuple):
    """Training data and evaluation prompts.

    Attributes:
      all: file of the training data.
      without: file of the training data outside the family.
      inside: evaluation prompts of the family, int32 [n] each, in neither file.
      outside: evaluation prompts of other modules, in neither file.
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
    bad: Callable[[UserError], None] = refuse,
) -> Domains:
    """Splits answers of `train.regenerate` into the two training sets and the evaluation prompts.

    Args:
      data: files, as for `train.drafter`.
      family: a module or package of the standard library.
      encode: text -> token ids.
      directory: receives the two training sets; unchanged files are not rewritten.
      prompts: number of evaluation prompts, inside and outside each; at most half of the family's.
      bad: called with the error of a record that cannot be used, which is then skipped.

    Raises:
      UserError: the data are not answers of `train.regenerate`, or none is of the family.
    """
    answers = list(_answers(data, bad))
    texts = (text for file in module_files(family) for text in function_prompts(read(file)))
    ours = {tuple(encode(text)) for text in texts}
    found = {prompt for prompt, _ in answers}
    if len(found & ours) < 2 or found <= ours:
        raise UserError(
            f"--family {family}: {len(found & ours)} of {len(found)} prompts in {', '.join(data)} "
            "are its functions; name a module or package that has some of them, with the Python "
            "that the data were made with"
        )
    inside = heapq.nsmallest(min(prompts, len(found & ours) // 2), found & ours, key=_digest)
    outside = heapq.nsmallest(prompts, found - ours, key=_digest)
    held_out = {*inside, *outside}
    training = [(prompt, value) for prompt, value in answers if prompt not in held_out]
    return Domains(
        _write(directory / "all.jsonl", [value for _, value in training]),
        _write(directory / "without.jsonl", [v for prompt, v in training if prompt not in ours]),
        [np.array(prompt, np.int32) for prompt in inside],
        [np.array(prompt, np.int32) for prompt in outside],
    )


def _answers(
    data: Sequence[str], bad: Callable[[UserError], None]
) -> Iterator[tuple[Prompt, dict]]:
    """Yields prompts and their records."""
    for file in find_files(data):
        for content, record in read_contents(file, bad=bad):
            if not isinstance(content, Tokens):
                bad(
                    UserError(
                        f"{record.where}: not an answer of train.regenerate; this experiment "
                        "needs their prompts"
                    )
                )
                continue
            yield tuple(content.tokens[: content.prompt_length]), record.value


def _digest(prompt: Prompt) -> bytes:
    return hashlib.sha256(json.dumps(prompt).encode()).digest()


def _write(path: Path, values: list[dict]) -> Path:
    """Writes a file unless it is unchanged: prepared data depend on its modification time."""
    content = "".join(json.dumps(value) + "\n" for value in values).encode()
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)
    return path
