"""llama.cpp, through the functions of its C interface in llama-cpp-python.

The package's own class copies logits and keeps lists in Python for every token.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import Loaded, Setup


def load(setup: Setup) -> Loaded:
    """Loads the target's GGUF file, with the weights as they are stored. Keys and values are in
    float32 if the weights are, otherwise in float16, llama.cpp's default.

    Raises:
      UserError: the target is no GGUF file.
    """
    files = gguf_files(setup.target)
    if not files:
        raise UserError("reads GGUF targets only; llama.cpp's own tools convert others")
    llama: Any = importlib.import_module("llama_cpp")
    llama.llama_backend_init()
    tensors = [each for each in gguf.GGUFReader(files[0]).tensors if len(each.shape) > 1]
    stored = Counter(each.tensor_type.name for each in tensors).most_common(1)[0][0]
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(files[0]).encode(), options)
    if not model:
        raise RuntimeError("llama.cpp cannot load the file")
    how = llama.llama_context_default_params()
    how.n_ctx = how.n_batch = how.n_ubatch = setup.max_length
    how.n_threads = how.n_threads_batch = setup.threads
    how.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED  # faster here than without
    how.no_perf = True
    if stored == "F32":
        how.type_k = how.type_v = llama.GGML_TYPE_F32
    context = llama.llama_init_from_model(model, how)
    if not context:
        raise RuntimeError("llama.cpp cannot make a context")
    memory = llama.llama_get_memory(context)
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def step(tokens: Sequence[int]) -> int:
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        status = llama.llama_decode(context, llama.llama_batch_get_one(ids, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = llama.llama_get_logits_ith(context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (vocab_size,))))

    def decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        llama.llama_memory_clear(memory, True)
        tokens = [step(prompt.tolist())]
        start = time.perf_counter()
        for _ in range(new_tokens - 1):
            tokens.append(step(tokens[-1:]))
        return tokens, time.perf_counter() - start

    return Loaded(stored, decode)
