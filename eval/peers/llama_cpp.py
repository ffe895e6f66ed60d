"""llama.cpp, through the functions of its C interface in llama-cpp-python.

The package's own class copies logits and keeps lists in Python for every token.
"""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import LLAMA_LOOKUP, Loaded, Setup

_DRAFTS = 2  # tokens, as its documentation advises for CPUs


def load(setup: Setup) -> Loaded:
    """Loads the target's GGUF file, with the weights as they are stored. Keys and values are in
    float32 if the weights are, otherwise in float16, llama.cpp's default. Drafts are those of
    llama-cpp-python's prompt lookup.

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
    draft = None
    if setup.name == LLAMA_LOOKUP:
        speculative: Any = importlib.import_module("llama_cpp.llama_speculative")
        draft = speculative.LlamaPromptLookupDecoding(num_pred_tokens=_DRAFTS)

    room = llama.llama_batch_init(setup.max_length, 0, 1)

    def steps(tokens: Sequence[int], first: int, wanted: int) -> list[int]:
        """Runs tokens at the positions from `first` on; returns the most likely tokens after the
        last `wanted` of them."""
        room.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            room.token[i], room.pos[i], room.n_seq_id[i], room.seq_id[i][0] = token, first + i, 1, 0
            room.logits[i] = i >= len(tokens) - wanted
        status = llama.llama_decode(context, room)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = [llama.llama_get_logits_ith(context, i - wanted) for i in range(wanted)]
        return [int(np.argmax(np.ctypeslib.as_array(row, (vocab_size,)))) for row in logits]

    def decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        llama.llama_memory_clear(memory, True)
        text = [*prompt.tolist(), *steps(prompt.tolist(), 0, 1)]
        length = len(prompt) + new_tokens
        start = time.perf_counter()
        while len(text) < length:
            drafts = [] if draft is None else draft(np.array(text)).tolist()
            drafts = drafts[: length - len(text) - 1]
            at = len(text) - 1
            tokens = steps([text[-1], *drafts], at, 1 + len(drafts))
            right = next((i for i, each in enumerate(drafts) if each != tokens[i]), len(drafts))
            text += tokens[: right + 1]
            if right < len(drafts):
                llama.llama_memory_seq_rm(memory, 0, at + 1 + right, -1)
        return text[len(prompt) :], time.perf_counter() - start

    return Loaded(stored, decode)
