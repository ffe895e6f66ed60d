"""llama.cpp, through the functions of its C interface in llama-cpp-python.

The package's own class copies logits and keeps lists in Python for every token.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import Setup, Stepwise
from eval.peers.engines.gguf_file import most_common_type, write_gguf

_FILE = "model.gguf"


def load(setup: Setup) -> Stepwise:
    """Loads a GGUF file of the target: its own, with the weights as they are stored, or one in the
    precision. Keys and values are in float32 if the weights are, otherwise in float16, llama.cpp's
    default.

    Raises:
      UserError: the target is no GGUF file whose weights could stay as they are stored, or
        `write_gguf` cannot write it.
    """
    llama: Any = importlib.import_module("llama_cpp")
    label = setup.precision
    if setup.precision == "stored":
        path = next(iter(gguf_files(setup.target)), None)
        if path is None:
            raise UserError("only the weights of a GGUF target can stay as they are stored")
        label = most_common_type(path)
    else:
        path = setup.converted(lambda part: _write(part, setup)) / _FILE
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise RuntimeError("llama.cpp cannot load the file")
    wanted = llama.llama_context_default_params()
    wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = setup.max_length
    wanted.n_threads = wanted.n_threads_batch = setup.threads
    wanted.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED  # faster here than without
    wanted.no_perf = True
    if setup.precision == "float32":
        wanted.type_k = wanted.type_v = llama.GGML_TYPE_F32
    context = llama.llama_init_from_model(model, wanted)
    if not context:
        raise RuntimeError("llama.cpp cannot make a context")
    memory = llama.llama_get_memory(context)
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def step(tokens: Sequence[int], position: int) -> int:
        if position == 0:
            llama.llama_memory_clear(memory, True)
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        status = llama.llama_decode(context, llama.llama_batch_get_one(ids, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = llama.llama_get_logits_ith(context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (vocab_size,))))

    return Stepwise(label, step)


def _write(directory: Path, setup: Setup) -> None:
    write_gguf(directory / _FILE, setup.target, setup.precision)
