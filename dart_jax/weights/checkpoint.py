"""Checkpoints in the layouts of Hugging Face (target) and of the reference (drafter).

A directory holds `config.json` and the weights: `model.safetensors`, or shards of it with an index,
or, as some EAGLE-3 drafters are published, `pytorch_model.bin`. A DART drafter's pair scores are in
`pair_scores.safetensors`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from dart_jax.errors import UserError
from dart_jax.files import read_json, write_atomically
from dart_jax.models.config import TargetConfig
from dart_jax.models.config_json.drafter_formats import is_drafter
from dart_jax.models.draft_layer_config import REFERENCE
from dart_jax.models.drafter_config import AnyDrafterConfig, drafter_config
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.models.networks.pure import Params
from dart_jax.models.platform.execution import best_dtype
from dart_jax.models.platform.weights import WeightsForm
from dart_jax.models.sharding.placement import DEFAULT, ModelPlacement, Placement
from dart_jax.models.sharding.rules import with_kv_heads
from dart_jax.weights.drafter_files import (
    authors_names,
    draft_vocabulary,
    embedding_shape,
    with_stored_parts,
)
from dart_jax.weights.formats.layouts import AnyConfig
from dart_jax.weights.formats.safetensors_file import Tensor
from dart_jax.weights.generation_file import load_eos as load_eos
from dart_jax.weights.parameters import load_params, stored_tensors
from dart_jax.weights.target_files import open_target
from dart_jax.weights.target_files import read_target_config as read_target_config
from dart_jax.weights.tensor_files import open_pair_scores, open_tensors, write_tensors

MAX_SHARD_SIZE = 5_000_000_000


def read_any_drafter_config(directory: Path) -> AnyDrafterConfig | TargetConfig:
    """Reads the config of a drafter, or of a small model that can draft token by token; raises
    UserError if it is missing or not supported."""
    json = read_json(directory / "config.json")
    if is_drafter(json) or "model_type" not in json:
        return drafter_config(json)
    try:
        return read_target_config(directory)
    except UserError as error:
        raise UserError(
            f"{directory} is neither a drafter nor a model that could draft token by token: {error}"
        ) from None


def load_target(
    directory: str | os.PathLike[str],
    dtype: DTypeLike = jnp.float32,
    *,
    form: WeightsForm = WeightsForm(),
    mesh: Mesh | None = None,
    place: Callable[[TargetConfig], Placement] | None = None,
) -> tuple[TargetConfig, Params]:
    """Reads the config and weights of a Hugging Face directory.

    Args:
      directory: the checkpoint.
      dtype: float32, bfloat16 or float16; weights are converted to it.
      form: what is prepared while loading: before tiles of float32, kernels and embeddings that
        are stored in 16 bits stay so, and those that a GGUF file has in blocks become tiles of
        these; matrices are rounded to 8 bits.
      mesh: devices that share the target (see `models.sharding`). A process reads no more than its
        devices get. If they are more than heads of keys and values, the config has one for each.
      place: makes, of the config, what puts parameters onto devices, where no mesh says where they
        belong.

    Raises:
      UserError: the directory, its config or its weights are missing or damaged, or do not match.
        One message reports all mismatches.

    Warns:
      InputWarning: as `weights.target_files.open_target`.
    """
    directory = Path(directory)
    dtype = resolve_dtype(dtype)
    config, files = open_target(directory)
    placement = DEFAULT if place is None else place(config)
    placement = placement if mesh is None else ModelPlacement(config, mesh)
    params = load_params(files, config, dtype, form, place=placement)
    return config if mesh is None else with_kv_heads(config, mesh), params


def save_target(
    directory: str | os.PathLike[str],
    config: TargetConfig,
    params: Params,
    eos: tuple[int, ...] = (),
    max_shard_size: int = MAX_SHARD_SIZE,
) -> None:
    """Writes a directory that `transformers` can load. Each file is replaced atomically.

    Args:
      directory: created if it is missing.
      config: the shapes.
      params: the weights, stored in their own dtype.
      eos: ids that end a sequence, written to both configs.
      max_shard_size: bytes; larger models are written as shards, with an index as the last file.
    """
    directory = Path(directory)
    # Written even if there are none: the defaults of transformers are other tokens.
    special = {"eos_token_id": list(eos) or None, "bos_token_id": None, "pad_token_id": None}
    generation = directory / "generation_config.json"
    if eos:
        write_atomically(generation, f"{json.dumps({'eos_token_id': list(eos)})}\n".encode())
    else:
        generation.unlink(missing_ok=True)  # of an earlier checkpoint
    _save(directory, config, special, params, {}, max_shard_size)


def load_drafter(
    directory: str | os.PathLike[str],
    dtype: DTypeLike = jnp.float32,
    embedding: jax.Array | Tiles | None = None,
    *,
    target: Path | None = None,
    config: AnyDrafterConfig | None = None,
    form: WeightsForm = WeightsForm(),
    mesh: Mesh | None = None,
) -> tuple[AnyDrafterConfig, Params, np.ndarray]:
    """Reads a drafter in the layout of its authors, of SpecForge, ModelOpt, vLLM or speculators.

    Args:
      directory: the checkpoint.
      dtype: float32, bfloat16 or float16; weights are converted to it.
      embedding: [V, D], the target's embedding. An embedding in the file becomes one of the
        parameters unless it equals this one, up to rounding to the file's dtype. Draft ids from V
        on are left out.
      target: the target's directory, whose head takes the place of a missing one.
      config: the drafter's, by default the directory's.
      form: as for `load_target`.
      mesh: devices that share the drafter, as for `load_target`, or None if each has all of it.

    Returns:
      The config, completed by what the files hold, the parameters and the draft vocabulary:
      int32 [Vd], target id of each draft id.

    Raises:
      UserError: as `load_target`.
    """
    directory = Path(directory)
    dtype = resolve_dtype(dtype)
    config = config or drafter_config(read_json(directory / "config.json"))
    files = authors_names(open_tensors(directory), config)
    config = with_stored_parts(files, config, embedding, target)
    size = None if embedding is None else embedding_shape(embedding)[0]
    config, ids = draft_vocabulary(files, config, size)
    if config.pairs_apart:
        files.tensors.update(open_pair_scores(directory))
    place = DEFAULT if mesh is None else ModelPlacement(config, mesh)
    params = load_params(files, config, dtype, form, place=place)
    return config if mesh is None else with_kv_heads(config, mesh), params, ids


def save_drafter(
    directory: str | os.PathLike[str],
    config: AnyDrafterConfig,
    params: Params,
    ids: np.ndarray,
    max_shard_size: int = MAX_SHARD_SIZE,
    embedding: jax.Array | None = None,
    head: jax.Array | None = None,
) -> None:
    """Writes a directory that the reference can load, without pair scores, or one in a block
    drafter's layout. Each file is replaced atomically.

    Args:
      directory: created if it is missing.
      config: the shapes.
      params: the weights, stored in their own dtype.
      ids: the draft vocabulary: int32 [Vd], target id of each draft id.
      max_shard_size: bytes; larger drafters are written as shards.
      embedding: [V, D], stored in the file. Required if the target's rows have another width than
        the drafter's and the parameters hold no embedding: readers take the target's only for
        drafters of its own width. DeepSpec's layout has it always.
      head: [D, V], the target's, stored in a block drafter's file. DeepSpec's layout has it always;
        speculators' own loader takes it, and the embedding, from the file.

    Raises:
      UserError: the embedding or the head is missing or has another shape, or a block drafter's
        layout has no place for a field of its config.
    """
    if embedding is None and not (config.shares_embedding or config.own_embedding):
        raise UserError(
            f"the drafter's rows have {config.hidden_size} numbers and the target's "
            f"{config.target_hidden_size}, so it cannot read the target's embedding; pass its own"
        )
    if embedding is not None and embedding.shape != (config.vocab_size, config.hidden_size):
        raise UserError(
            f"the embedding has shape {embedding.shape}, the drafter's config requires "
            f"{(config.vocab_size, config.hidden_size)}"
        )
    extra: dict[str, np.ndarray] = {}
    if config.layout == REFERENCE or len(ids) < config.vocab_size:
        extra["d2t"] = ids.astype(np.int64) - np.arange(len(ids))
        extra["t2d"] = np.isin(np.arange(config.vocab_size), ids)
    if config.layout == "deepspec" and embedding is None and not config.own_embedding:
        raise UserError("DeepSpec's layout has a copy of the target's embedding; pass it")
    if not config.own_head and (head is not None or config.layout == "deepspec"):
        if head is None or head.shape != (config.hidden_size, config.vocab_size):
            raise UserError("DeepSpec's layout has a copy of the target's head; pass it")
        extra["lm_head.weight"] = np.asarray(head).T
    if embedding is not None:
        extra["embed_tokens.weight"] = np.asarray(embedding)
    _save(Path(directory), config, {}, params, extra, max_shard_size)


def resolve_dtype(dtype: DTypeLike) -> np.dtype:
    """Resolves the requested dtype of weights; raises UserError if weights cannot have it.

    "auto" is float32 on CPU, float16 on GPUs that do not multiply bfloat16, otherwise bfloat16.
    """
    if dtype == "auto":
        dtype = best_dtype()
    try:
        resolved = jnp.dtype(dtype)
    except TypeError:
        resolved = None
    if resolved not in (np.float32, np.float16, ml_dtypes.bfloat16):
        raise UserError(f"weights can be float32, float16 or bfloat16, not {dtype!r}")
    return resolved


def _save(
    directory: Path,
    config: AnyConfig,
    fields: dict[str, Any],
    params: Params,
    extra: dict[str, np.ndarray],
    max_shard_size: int,
) -> None:
    tensors = stored_tensors(config, params)
    tensors |= {name: Tensor(a.shape, a.dtype, lambda a=a: a) for name, a in extra.items()}
    fields = fields | {"torch_dtype": jax.tree.leaves(params)[0].dtype.name}
    text = json.dumps(config.to_json() | fields, indent=2) + "\n"
    write_atomically(directory / "config.json", text.encode())
    # Last, so that a directory with weights is complete.
    write_tensors(directory, tensors, max_shard_size)
