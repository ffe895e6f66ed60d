"""transformers with PyTorch: its cached forward, and its own drafting."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import Decode, Setup, stepwise, whole

_LOOKUP = 10  # tokens that prompt lookup drafts, as in the examples of its documentation


def load(setup: Setup) -> Decode:
    """Loads the model. Its forward is called directly, since `generate` does the same and more for
    every token; only `lookup` and `assisted` are options of `generate`.

    Raises:
      UserError: `assisted` has no small model.
    """
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(setup.threads)
    torch.set_grad_enabled(False)
    model = _model(setup.target, setup.precision)
    if setup.name == "lookup":
        return _generate(model, prompt_lookup_num_tokens=_LOOKUP)
    if setup.name == "assisted":
        if setup.draft_model is None:
            raise UserError("needs a small model; pass it as --draft-model")
        return _generate(model, assistant_model=_model(setup.draft_model, setup.precision))
    cache: Any = None

    def step(tokens: Sequence[int], position: int) -> int:
        nonlocal cache
        if position == 0:
            cache = transformers.DynamicCache(config=model.config)
        ids = torch.tensor([tokens])
        logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())

    return stepwise(step)


def _model(directory: Path, precision: str) -> Any:
    """Loads a directory of transformers or, dequantised, a GGUF file, without an end of texts."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    options: dict[str, Any] = {"dtype": getattr(torch, precision), "local_files_only": True}
    if files := gguf_files(directory):
        directory, options["gguf_file"] = files[0].parent, files[0].name
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **options).eval()
    model.generation_config.eos_token_id = None
    return model


def _generate(model: Any, **options: Any) -> Decode:
    torch: Any = importlib.import_module("torch")

    def generate(prompt: np.ndarray, new_tokens: int) -> list[int]:
        ids = torch.tensor([prompt.tolist()])
        text = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            **options,
        )
        return text[0, len(prompt) :].tolist()

    return whole(generate)
