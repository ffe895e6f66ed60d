"""transformers with PyTorch: its `generate`, alone or with its prompt lookup."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from dart_jax.weights.checkpoint import resolve_dtype
from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import Loaded, Setup, whole

_LOOKUP = 10  # tokens that prompt lookup drafts, as in the examples of its documentation


def load(setup: Setup) -> Loaded:
    """Loads a directory of transformers or, dequantised, a GGUF file, for endless texts."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(setup.threads)
    directory, dtype = setup.target, str(resolve_dtype(setup.model.dtype))
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "local_files_only": True}
    if files := gguf_files(directory):
        directory, options["gguf_file"] = files[0].parent, files[0].name
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **options).eval()
    model.generation_config.eos_token_id = None
    drafting = {"prompt_lookup_num_tokens": _LOOKUP} if setup.name == "lookup" else {}

    def generate(prompt: np.ndarray, new_tokens: int) -> list[int]:
        ids = torch.tensor([prompt.tolist()])
        mask, length = torch.ones_like(ids), {"max_new_tokens": new_tokens}
        text = model.generate(ids, attention_mask=mask, do_sample=False, **length, **drafting)
        return text[0, len(prompt) :].tolist()

    return Loaded(dtype, whole(generate))
