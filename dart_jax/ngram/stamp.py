"""Records another tokenizer in a copy of an n-gram file.

The ids stay as they are, so each that occurs must mean the same to both tokenizers.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np

from dart_jax import _core
from dart_jax.errors import UserError
from dart_jax.ngram.builder import writing
from dart_jax.ngram.model import NgramModel
from dart_jax.text.fingerprint import extends, tokenizer_fingerprint
from dart_jax.text.tokenizer import Tokenizer

# Where the header has them: see docs/ngram-format.md.
_FINGERPRINT, _CHECKSUM = 168, 264


def stamp(source: Path, out: Path, tokenizer: Path, counted_with: Path | None) -> str:
    """Copies an n-gram file with the fingerprint of another tokenizer.

    Args:
      source: the file.
      out: the copy; not the file itself.
      tokenizer: directory of the other tokenizer.
      counted_with: directory of the one that the file was counted with; None leaves it to the user
        whether the ids mean the same.

    Returns:
      What differs, in one line.

    Raises:
      UserError: an id that occurs is another token, or none, to the other tokenizer; or the file
        was not counted with `counted_with`.
    """
    model, other = NgramModel.load(source), Tokenizer.load(tokenizer)
    ids = np.flatnonzero(model.unigrams)
    names = {id: name for name, id in other.get_vocab().items()}
    strange = next((int(id) for id in ids if int(id) not in names), None)
    if strange is not None:
        raise UserError(
            f"the token id {strange} occurs in {source}, but is none of {tokenizer}; count one "
            "with that tokenizer"
        )
    told = _compared(model, source, other, tokenizer, counted_with)
    with writing(out) as part:
        shutil.copyfile(source, part)
        with part.open("r+b") as file:
            header = bytearray(file.read(_CHECKSUM))
            fingerprint = tokenizer_fingerprint(other)
            header[_FINGERPRINT : _FINGERPRINT + len(fingerprint)] = fingerprint
            file.seek(0)
            file.write(bytes(header) + struct.pack("<Q", _core.xxh64(bytes(header))))
    return told


def _compared(
    model: NgramModel, source: Path, other: Tokenizer, directory: Path, counted_with: Path | None
) -> str:
    """What differs between two tokenizers; raises UserError if it is an id that occurs."""
    if counted_with is None:
        if extends(other, model.fingerprint):
            return f"{directory} only adds tokens to the tokenizer that it was counted with"
        likely = np.argsort(-model.unigrams, kind="stable")[:8]
        texts = " ".join(repr(other.decode([int(id)], skip_special_tokens=False)) for id in likely)
        return (
            "not checked: it does not hold the tokenizer that it was counted with (give that as "
            f"--counted-with); its most frequent tokens read {texts}"
        )
    own = Tokenizer.load(counted_with)
    if not extends(own, model.fingerprint):
        raise UserError(f"{source} was not counted with the tokenizer of {counted_with}; give that")
    ours = {id: name for name, id in own.get_vocab().items()}
    theirs = {id: name for name, id in other.get_vocab().items()}
    different = sorted(id for id in ours.keys() | theirs.keys() if ours.get(id) != theirs.get(id))
    for id in different:
        if id < model.vocab_size and model.unigrams[id]:
            raise UserError(
                f"the token id {id} occurs in {source}, as {ours.get(id)!r}, but is "
                f"{theirs.get(id)!r} in {directory}; count one with that tokenizer"
            )
    return f"{len(different):,} ids are other tokens in {directory}; none of them occurs"
