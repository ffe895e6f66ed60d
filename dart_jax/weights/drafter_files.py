"""The draft vocabulary and the embedding in a drafter's files; checks that it fits its target."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError, warn
from dart_jax.models.config import TargetConfig
from dart_jax.models.draft_layer_config import REFERENCE, DraftLayerConfig
from dart_jax.models.drafter_config import AnyDrafterConfig
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.weights.formats.layouts import EMBEDDING as EMBEDDING_OF_TARGET
from dart_jax.weights.formats.layouts import HEAD, text_tensor
from dart_jax.weights.formats.safetensors_file import Tensor
from dart_jax.weights.parameters import STORED_DTYPES
from dart_jax.weights.target_files import BUFFERS
from dart_jax.weights.tensor_files import TensorFiles, open_tensors

EMBEDDING = "embed_tokens.weight"
# Copies of the target's weights, with which speculators trains.
_OF_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")
# By how many rows the vocabulary of one tokenizer may differ between models: tables are padded to a
# multiple of a power of two.
_PADDING = 1024


def authors_names(files: TensorFiles, config: AnyDrafterConfig) -> TensorFiles:
    """Returns the tensors by the names that EAGLE-3's and DART's, or DFlash's, authors use.

    Some begin all names with `model.`. Of EAGLE-3 drafters, vLLM, speculators and ModelOpt call the
    first layer `layers.0`.

    Raises:
      UserError: two tensors have the same name then.
    """
    first = config.layout == REFERENCE
    first = first and not any("midlayer." in name for name in files.tensors)

    def renamed(name: str) -> str:
        # SpecForge put the heads of DSpark into a module once.
        name = name.removeprefix("model.").removeprefix("logit_head.")
        return name.replace("layers.0.", "midlayer.", 1) if first else name

    names = {name: renamed(name) for name in files.tensors}
    if len({*names.values()}) < len(names):
        counts = Counter(names.values())
        twice = sorted(name for name, new in names.items() if counts[new] > 1)
        raise UserError(
            f"{files.path} has the same tensors under two names, {', '.join(twice[:4])}; keep "
            "those of one layout"
        )
    tensors = {
        new: files.tensors[name]
        for name, new in names.items()
        if new not in _OF_TARGET and not BUFFERS.search(new)
    }
    return files._replace(tensors=tensors)


def with_stored_parts(
    files: TensorFiles,
    config: AnyDrafterConfig,
    embedding: jax.Array | Tiles | None,
    target: Path | None,
) -> AnyDrafterConfig:
    """Returns the config, completed by what the file holds.

    Args:
      files: by the authors' names; an embedding that is the target's is dropped, and so is such a
        head of a block drafter. A head that is missing becomes the target's, unless the drafter can
        share that.
      config: from `config.json`.
      embedding: [V, D], the target's, if known.
      target: its directory, if known.

    Raises:
      UserError: there is no embedding to read, or no head.
    """
    ids, head = files.tensors.get("d2t"), files.tensors.get(HEAD)
    if ids is not None and head is not None and ids.shape == head.shape[:1]:
        config = dataclasses.replace(config, draft_vocab_size=ids.shape[0])
    stored = files.tensors.get(EMBEDDING)
    if stored is not None and embedding is not None and _same_rows(stored, embedding):
        del files.tensors[EMBEDDING]
        stored = None
    if stored is None and config.hidden_size != config.target_hidden_size:
        raise UserError(
            f"{files.path} has no {EMBEDDING}, but the drafter's rows have {config.hidden_size} "
            f"numbers and the target's {config.target_hidden_size}, so that it cannot read the "
            "target's; pass a file with the embedding that it was trained with"
        )
    config = dataclasses.replace(config, own_embedding=stored is not None)
    own_head = _with_head(files, config, target)
    if config.own_head != own_head:  # no field where it is always true
        config = dataclasses.replace(config, own_head=own_head)
    return config.completed(files.tensors, files.path)


def _with_head(files: TensorFiles, config: AnyDrafterConfig, target: Path | None) -> bool:
    """Completes `files` by the drafter's head, or drops it; returns whether it is in them then.

    A block drafter of the whole vocabulary shares the target's head; of one with a draft
    vocabulary a missing head is some of the target's rows, since it is trained with these.
    """
    head, block = files.tensors.get(HEAD), config.layout != REFERENCE
    if head is not None and not block:
        return True
    theirs = None if target is None else _head_of(target)
    if block and config.draft_vocab_size == config.vocab_size:
        if head is not None and theirs is not None and _same_rows(head, theirs):
            del files.tensors[HEAD]
        return HEAD in files.tensors
    if head is not None:
        return True
    shape = (config.draft_vocab_size, config.hidden_size)
    if block and theirs is not None:
        ids = _stored_ids(files._replace(tensors={**files.tensors}), config)
        usable = ids < theirs.shape[0]  # those beyond are left out later
        rows, read = np.where(usable, ids, 0), theirs.read
        theirs = Tensor((len(ids), *theirs.shape[1:]), theirs.dtype, lambda: read()[rows])
    if theirs is None or theirs.shape != shape:
        raise UserError(
            f"{files.path} does not fit its config: missing {HEAD}, and its place can only be "
            "taken by the head of a target of the same shape; pass the drafter together with "
            "its target, or copy that head into the file"
        )
    files.tensors[HEAD] = theirs
    return True


def _head_of(target: Path) -> Tensor | None:
    """Returns the head as a target's files store it; of a tied one, the embedding."""
    tensors = {text_tensor(name): tensor for name, tensor in open_tensors(target).tensors.items()}
    return tensors.get(HEAD, tensors.get(EMBEDDING_OF_TARGET))


def draft_vocabulary(
    files: TensorFiles, config: AnyDrafterConfig, target_size: int | None
) -> tuple[AnyDrafterConfig, np.ndarray]:
    """Takes the draft vocabulary out of the files' tensors.

    Args:
      files: by the authors' names.
      config: its drafter's.
      target_size: tokens of the target, V; those beyond are left out of the head. None for the
        drafter's own number.

    Returns:
      The config with the number of tokens that are left, and their target ids, int32 [Vd].

    Raises:
      UserError: the ids are missing, damaged or not a target's.
    """
    ids = _stored_ids(files, config)
    size = config.vocab_size if target_size is None else target_size
    if not config.own_head and len(ids) < size:
        ids = np.arange(size, dtype=np.int32)  # the target's head is over all of its tokens
    usable = ids < size
    if usable.all():
        return dataclasses.replace(config, draft_vocab_size=len(ids)), ids
    head = files.tensors.get(HEAD)
    if head is not None and head.shape[0] == len(ids):
        rows = np.flatnonzero(usable)
        shape = (len(rows), *head.shape[1:])
        files.tensors[HEAD] = Tensor(shape, head.dtype, lambda: head.read()[rows])
    if config.pair_rank:
        raise UserError(
            f"{files.path}: the draft vocabulary has ids beyond the target's {size} tokens, and "
            "pair scores of them; pass the target that the drafter was trained for"
        )
    ids = ids[usable]
    return dataclasses.replace(config, draft_vocab_size=len(ids)), ids


def _stored_ids(files: TensorFiles, config: DraftLayerConfig) -> np.ndarray:
    """Returns the target id of each draft id, int32 [Vd]."""
    size = config.draft_vocab_size
    draftable = files.tensors.pop("t2d", None)
    stored = files.tensors.pop("d2t", None)
    if stored is None:
        if size < config.vocab_size:
            raise UserError(f"{files.path} does not fit its config: missing d2t")
        return np.arange(size, dtype=np.int32)
    if stored.shape != (size,) or stored.dtype.kind not in "iu":
        raise UserError(
            f"{files.path}: d2t has shape {stored.shape} and dtype {stored.dtype}, not [{size}] "
            "integers"
        )
    numbers = stored.read().astype(np.int64)
    flags = None if draftable is None else draftable.read().reshape(-1) != 0
    # d2t is what is to be added to a draft id. Some files hold the sum instead, which shows where
    # t2d, a flag for each of the target's tokens, marks only those, or where nothing else is valid.
    readings = [
        ids for ids in (np.arange(size) + numbers, numbers) if _valid(ids, config.vocab_size)
    ]
    if not readings:
        raise UserError(f"{files.path}: d2t does not map to distinct ids below {config.vocab_size}")
    marked = [ids for ids in readings if flags is None or _marked(ids, flags)]
    if not marked:
        warn(f"t2d of {files.path} marks other tokens than d2t, and is not used")
    return (marked or readings)[0].astype(np.int32)


def _valid(ids: np.ndarray, vocab_size: int) -> bool:
    distinct = len(np.unique(ids)) == len(ids)
    return distinct and ids.min(initial=0) >= 0 and ids.max(initial=0) < vocab_size


def _marked(ids: np.ndarray, flags: np.ndarray) -> bool:
    return bool(ids.max(initial=0) < len(flags) and flags[ids].all())


def embedding_shape(embedding: jax.Array | Tiles | Tensor) -> tuple[int, int]:
    """Returns the tokens and the width of an embedding [V, D], which may be in tiles."""
    rows, columns = embedding.shape
    return (columns, rows) if isinstance(embedding, Tiles) else (rows, columns)


def _same_rows(stored: Tensor, embedding: jax.Array | Tiles | Tensor) -> bool:
    """Returns whether an embedding, or a head, is the target's, as far as both go: one may be
    padded."""
    size, width = embedding_shape(embedding)
    if stored.shape[1:] != (width,) or stored.dtype.name not in STORED_DTYPES:
        return False
    if abs(stored.shape[0] - size) > _PADDING:
        return False
    whole = stored.read()
    table = embedding.read() if isinstance(embedding, Tensor) else embedding
    table = table if isinstance(table, Tiles) else np.asarray(table)
    count, part = min(len(whole), size), 1 << 12
    # Each side may have been rounded to its own dtype: compare after rounding to both.
    with np.errstate(all="ignore"):
        for first in range(0, count, part):
            last = min(first + part, count)
            theirs = whole[first:last]
            ours = table[first:last] if isinstance(table, np.ndarray) else _rows(table, first, last)
            rounded = ours.astype(theirs.dtype).astype(ours.dtype)
            if not np.array_equal(rounded, theirs.astype(ours.dtype)):
                return False
    return True


def _rows(table: Tiles, first: int, last: int) -> np.ndarray:
    return np.asarray(table.rows(jnp.arange(first, last)))


def check_fit(target: TargetConfig, drafter: AnyDrafterConfig | TargetConfig) -> None:
    """Raises UserError unless the drafter was trained for a target of these shapes, or is a
    language model with the target's vocabulary. Either vocabulary may be padded further."""
    if abs(drafter.vocab_size - target.vocab_size) > _PADDING:
        kind = "drafter" if drafter.traits.features else "draft model"
        raise UserError(
            f"the {kind} has {drafter.vocab_size} tokens and the target {target.vocab_size}; pass "
            "one with the same tokenizer, trained for this target if it is a drafter"
        )
    drafter.check_fit(target)


def check_draft_model(directory: Path, names: Iterable[str]) -> None:
    """Raises UserError if what looks like a language model has the tensors of a drafter."""
    signs = {"fc.weight": "EAGLE-1 or EAGLE-2", "0.0.linear.weight": "Medusa"}
    for name, kind in signs.items():
        if name in names:
            raise UserError(
                f"{directory} holds a drafter of the format {kind} ({name}), which cannot be read; "
                "pass a DART, EAGLE-3 or block drafter, or a small language model"
            )
