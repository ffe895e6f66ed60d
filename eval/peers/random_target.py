"""Random weights in a shape as a GGUF file, which all engines for GGUF targets read.

Speed hardly depends on the weights, and of most shapes no file is at hand.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.models.config import TargetConfig
from dart_jax.models.rope import Rope
from dart_jax.progress import tracked
from dart_jax.weights.layouts import layout

_STD = 0.02  # of weights, as for `eval.latency.model`


def write_random(path: Path, config: TargetConfig, console: Console) -> None:
    """Writes random weights in a shape: matrices in bfloat16, scales of norms, 1, in float32. The
    file has no vocabulary; the demo's tokenizer is put beside it.

    Raises:
      UserError: the shape has experts, or scaled frequencies of RoPE.
    """
    if config.moe is not None or config.rope != Rope(config.rope.theta):
        raise UserError("--shape takes none with experts or with scaled frequencies of RoPE here")
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    by_value = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_value[arch], config.num_hidden_layers)
    shapes = [(name, entry.shape) for name, entry in layout(config).items()]
    for name, shape in shapes:
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None
        kind = gguf.GGMLQuantizationType.BF16 if len(shape) > 1 else None
        dtype = np.dtype(np.float32 if kind is None else ml_dtypes.bfloat16)
        writer.add_tensor_info(own, shape, dtype, dtype.itemsize * int(np.prod(shape)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for _, shape in tracked(shapes, "writing random weights", console):
        if len(shape) == 1:
            writer.write_tensor_data(np.ones(shape, np.float32))
        else:
            values = rng.standard_normal(shape, np.float32)
            values *= _STD
            writer.write_tensor_data(values.astype(ml_dtypes.bfloat16))
    writer.close()
    shutil.copy(DEMO / "target" / "tokenizer.json", path.parent)
