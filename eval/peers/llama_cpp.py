"""llama.cpp, through the functions of its C interface in llama-cpp-python.

The package's own class copies logits and keeps lists in Python for every token.
"""

from __future__ import annotations

import ctypes
import importlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import Loaded, Setup, stepwise

_FTYPES = {
    "float32": "LLAMA_FTYPE_ALL_F32",
    "float16": "LLAMA_FTYPE_MOSTLY_F16",
    "bfloat16": "LLAMA_FTYPE_MOSTLY_BF16",
}


def load(setup: Setup) -> Loaded:
    """Loads the target's GGUF file, with the weights as they are stored, or as llama.cpp converts
    them to the precision. Keys and values are in float32 if the weights are, otherwise in float16,
    llama.cpp's default.

    Raises:
      UserError: the target is no GGUF file.
    """
    files = gguf_files(setup.target)
    if not files:
        raise UserError("reads GGUF targets only; llama.cpp's own tools convert others")
    path, label = files[0], setup.precision
    llama: Any = importlib.import_module("llama_cpp")
    llama.llama_backend_init()
    if label == "stored":
        tensors = [each for each in gguf.GGUFReader(path).tensors if len(each.shape) > 1]
        label = Counter(each.tensor_type.name for each in tensors).most_common(1)[0][0]
    else:
        conversion = llama.llama_model_quantize_default_params()
        conversion.ftype, conversion.allow_requantize = getattr(llama, _FTYPES[label]), True
        source, path = path, setup.work / f"{label}.gguf"
        names = str(source).encode(), str(path).encode()
        if llama.llama_model_quantize(*names, ctypes.byref(conversion)):
            raise RuntimeError("llama.cpp cannot convert the file")
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise RuntimeError("llama.cpp cannot load the file")
    how = llama.llama_context_default_params()
    how.n_ctx = how.n_batch = how.n_ubatch = setup.max_length
    how.n_threads = how.n_threads_batch = setup.threads
    how.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED  # faster here than without
    how.no_perf = True
    if setup.precision == "float32":
        how.type_k = how.type_v = llama.GGML_TYPE_F32
    context = llama.llama_init_from_model(model, how)
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

    return Loaded(label, stepwise(step))
