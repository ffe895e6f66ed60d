"""llama.cpp, through the functions of its C interface in llama-cpp-python.

The package's own class copies logits and keeps lists in Python for every token.
"""

from __future__ import annotations

import ctypes
import importlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import Loaded, Setup, stepwise

_TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
}


def load(setup: Setup) -> Loaded:
    """Loads the target's GGUF file, with the weights as they are stored, or one written from it in
    the precision. Keys and values are in float32 if the weights are, otherwise in float16,
    llama.cpp's default.

    Raises:
      UserError: the target is no GGUF file, or one in parts of which others are to be written.
    """
    files = gguf_files(setup.target)
    if not files:
        raise UserError("reads GGUF targets only; llama.cpp's own tools convert others")
    path, label = files[0], setup.precision
    if label == "stored":
        label = most_common_type(path)
    elif len(files) > 1:
        raise UserError("other precisions are written from GGUF targets in one part only")
    else:
        path = setup.work / f"{label}.gguf"
        write_gguf(path, files[0], label)
    llama: Any = importlib.import_module("llama_cpp")
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    llama.llama_backend_init()
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


def write_gguf(path: Path, source: Path, precision: str) -> None:
    """Writes a GGUF file's matrices in float32, float16 or bfloat16 and its vectors in float32; all
    its other fields stay as they are, but those that say how weights were quantised."""
    reader = gguf.GGUFReader(source)
    own = ("general.architecture", "general.file_type", "general.quantization_version")
    writer = gguf.GGUFWriter(path, reader.fields[own[0]].contents())
    for name, field in reader.fields.items():
        if name not in own and not name.startswith("GGUF."):
            of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], of_items)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kind = _TYPES[precision if values.ndim > 1 else "float32"]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def most_common_type(path: Path) -> str:
    """Returns the type of most matrices in a GGUF file."""
    tensors = gguf.GGUFReader(path).tensors
    types = Counter(each.tensor_type.name for each in tensors if len(each.shape) > 1)
    return types.most_common(1)[0][0]
