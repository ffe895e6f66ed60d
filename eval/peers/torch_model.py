"""transformers with PyTorch: its cached forward, called directly.

Its `generate` does the same and more for every token.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import Decode, Setup, stepwise


def load(setup: Setup) -> Decode:
    """Loads a directory of transformers or, dequantised, a GGUF file."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(setup.threads)
    torch.set_grad_enabled(False)
    directory = setup.target
    options: dict[str, Any] = {"dtype": getattr(torch, setup.precision), "local_files_only": True}
    if files := gguf_files(directory):
        directory, options["gguf_file"] = files[0].parent, files[0].name
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **options).eval()
    cache: Any = None

    def step(tokens: Sequence[int], position: int) -> int:
        nonlocal cache
        if position == 0:
            cache = transformers.DynamicCache(config=model.config)
        ids = torch.tensor([tokens])
        logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())

    return stepwise(step)
