"""Parts of a model, loaded from files, as they are computed here."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dart_jax.decoding.drafting import AnyDrafter, drafter_title
from dart_jax.decoding.state import DecodeParams
from dart_jax.errors import UserError, warn
from dart_jax.files import read_json
from dart_jax.generation.transformers_options import unused_by_default
from dart_jax.memory import give_back, return_large
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import AnyDrafterConfig
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.models.layers.dense import Params
from dart_jax.models.networks.pure import dtype_of
from dart_jax.models.networks.sizes import WithWeights, device_bytes
from dart_jax.models.platform.device_memory import DeviceMemory, device_memory
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.weights import WeightsForm, untie
from dart_jax.models.sharding.placement import replicate
from dart_jax.models.traits import DraftingConfig
from dart_jax.ngram import NgramModel
from dart_jax.text.tokenizer import FILE as TOKENIZER
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_drafter, load_target, read_any_drafter_config
from dart_jax.weights.drafter_files import check_draft_model, check_fit
from dart_jax.weights.tensor_files import open_tensors

PathLike = str | os.PathLike[str]
PLAIN = "none"  # in place of a drafter: nothing drafts
_Config = TypeVar("_Config", bound=AnyDrafterConfig | TargetConfig | None)


def find_drafter(
    drafter: PathLike, target: TargetConfig, tokenizer: Tokenizer, token: str | bool | None
) -> tuple[Path, AnyDrafterConfig | TargetConfig]:
    """Returns a drafter's directory and config; raises UserError if it does not fit the target."""
    directory = hub.resolve(drafter, token=token, patterns=hub.DRAFTER)
    config = read_any_drafter_config(directory)
    check_fit(target, config)
    if not config.traits.features:
        _check_tokens(directory, tokenizer)
    return directory, config


def with_window(config: _Config, window: int | None) -> _Config:
    """Returns a drafter's config with the window of `DartModel.from_pretrained`, None for its own;
    raises UserError if nothing has such a window."""
    if window is None:
        return config
    if not 0 <= window < 2**31:
        raise UserError(
            f"a drafter's window must be positive and below 2^31, or 0 for none, got {window}"
        )
    return cast(_Config, (config or DraftingConfig()).with_window(window or None))


def check_room(
    target: TargetConfig,
    drafter: AnyDrafter | None,
    dtype: np.dtype,
    execution: Execution,
) -> None:
    """Raises UserError if the devices cannot hold the weights, before any is read."""
    memory, devices = device_memory(), execution.devices.with_drafter(drafter)
    if memory is None:
        return
    if devices.mesh is not None:  # as `load_target_here`
        target = dataclasses.replace(target, tie_word_embeddings=False)

    def need(int8: bool, shards: int) -> int:
        """Returns bytes of a device."""
        size = device_bytes(target, dtype, int8, shards)
        if isinstance(drafter, WithWeights):
            of_drafter = shards if devices.split_drafter else 1
            size += device_bytes(drafter, dtype, int8, of_drafter)
        return size

    size = need(execution.weights.int8, devices.shards)
    if size <= memory.free:
        return
    cures = []
    if (smaller := need(True, devices.shards)) <= memory.free:
        cures.append(f"--weights int8 ({smaller / 1e9:.1f} GB)")
    more = 2 * devices.shards
    if more <= jax.device_count() and need(execution.weights.int8, more) <= memory.free:
        cures.append(f"--mesh model={more}")
    raise UserError(
        f"the weights take {size / 1e9:.1f} GB of a device, and {memory.free / 1e9:.1f} GB of it "
        f"are free; pass {', or '.join([*cures, 'a smaller model'])}"
    )


def load_target_here(
    directory: Path, dtype: np.dtype, weights: WeightsForm, mesh: Mesh | None = None
) -> tuple[TargetConfig, Params]:
    """Loads a target, or a smaller model that drafts, as it is computed here."""
    return_large()
    config, params = load_target(directory, dtype, form=weights, mesh=mesh)
    params = weights.prepare(params, config, mesh)
    if jax.default_backend() == "cpu" or mesh is not None or weights.int8:
        config, params = untie(config, params, weights, mesh)
    jax.block_until_ready(params)
    give_back()
    return config, params


def load_drafter_here(
    path: Path,
    config: AnyDrafterConfig | TargetConfig,
    dtype: np.dtype,
    target: Params,
    target_directory: Path | None,
    execution: Execution,
) -> tuple[AnyDrafterConfig | TargetConfig, DecodeParams, Execution]:
    """Loads a drafter, of a directory and a config, that fits the target.

    Args:
      path: its directory.
      config: its config.
      dtype: of its weights.
      target: the target's parameters.
      target_directory: the target's, whose head a drafter may need.
      execution: of the target.

    Returns:
      The drafter's config as it is computed, the parameters of both, and how they are computed.
    """
    params: DecodeParams = {"target": target}
    weights = execution.weights
    devices = execution.devices.with_drafter(config)
    mesh = devices.mesh if devices.split_drafter else None
    if isinstance(config, TargetConfig):
        check_draft_model(path, open_tensors(path).tensors)
        config, params["drafter"] = load_target_here(path, dtype, weights)
    else:
        weights = weights.of_drafter(target)
        config, drafter, ids = load_drafter(
            path,
            dtype,
            target["embed_tokens"],
            target=target_directory,
            config=config,
            form=weights,
            mesh=mesh,
        )
        params["drafter"] = weights.prepare(drafter, config, mesh)
        params["draft_ids"] = jnp.asarray(ids)
    if devices.mesh is not None:
        params = {"target": params.pop("target"), **replicate(devices.mesh, params)}
    execution = dataclasses.replace(execution, devices=devices)
    return config, params, execution


def warn_of_unused(generation_file: Path) -> None:
    """Warns if transformers would write another text because of the target's generation config."""
    unused = generation_file.is_file() and unused_by_default(read_json(generation_file))
    if unused:
        warn(f"{generation_file}: {unused}")


def parts_in_words(
    target: TargetConfig,
    drafter: AnyDrafter | None,
    params: DecodeParams,
    ngram: NgramModel | None,
    execution: Execution,
    *,
    text_drafts: bool,
) -> dict[str, str]:
    """Describes a model's parts."""
    norm = params["target"]["norm"]["scale"]
    dtype = dtype_of(params["target"])
    devices = sorted(norm.devices(), key=lambda device: device.id)
    drafting = drafter_title(drafter, text=text_drafts)
    if "drafter" in params:
        drafting += f", {_parameter_count(params['drafter'])} parameters"
    kv = np.dtype(execution.target.cache_dtype(dtype))
    return {
        "target": f"{target.model_type}, {_parameter_count(params['target'])} parameters",
        "drafter": drafting,
        "n-gram model": "none" if ngram is None else repr(ngram),
        "dtype": f"{dtype}; keys and values {kv}",
        "device": f"{devices[0].device_kind} {', '.join(str(each.id) for each in devices)}",
        "size": _size(params, device_memory()),
    }


def room_in_words(params: DecodeParams, *, auto: bool) -> str:
    """Describes what a model takes of a device's memory, or returns "" where JAX does not tell
    that; `auto`: its dtype was chosen for the device."""
    memory = device_memory()
    if memory is None:
        return ""
    dtype = dtype_of(params["target"])
    why = ", which this GPU multiplies best" if auto and dtype == jnp.float16 else ""
    return f"{dtype}{why}: {_size(params, memory)}"


def _size(params: DecodeParams, memory: DeviceMemory | None) -> str:
    """Returns what parameters take, and what is left of a device's memory where that is known."""
    size = f"{sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 1e6:,.0f} MB"
    return size if memory is None else f"{size}; {memory.left / 1e6:,.0f} MB of a device are left"


def _parameter_count(params: Any) -> str:
    """Returns the number of parameters, such as 1.7 B."""
    is_leaf = lambda x: isinstance(x, Tiles)  # noqa: E731
    count = sum(leaf.size for leaf in jax.tree.leaves(params, is_leaf=is_leaf))
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


def _check_tokens(directory: Path, tokenizer: Tokenizer) -> None:
    """Raises UserError if a draft model has a tokenizer, and its ids are not the target's tokens.

    Added tokens may differ, as between the base model and the one for chats.
    """
    path = directory / TOKENIZER
    if not path.is_file():
        return
    ours, theirs = (
        {id: text for text, id in one.backend.get_vocab(with_added_tokens=False).items()}
        for one in (tokenizer, Tokenizer.load(path))
    )
    for id in ours.keys() & theirs.keys():
        if ours[id] != theirs[id]:
            raise UserError(
                f"token {id} is {theirs[id]!r} in the draft model's {path} and {ours[id]!r} in the "
                "target's; pass a draft model with the target's tokenizer"
            )
