"""transformers with PyTorch: its cached forward, as it is or compiled, and its own drafting."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights import hub
from dart_jax.weights.gguf.tensors import gguf_files
from eval.peers.engine import Decode, Loaded, Setup, stepwise, whole

_LOOKUP = 10  # tokens that prompt lookup drafts, as in the examples of its documentation


def load(setup: Setup) -> Loaded:
    """Loads the model with a growing cache; `compiled`: with one of fixed length, and single tokens
    through torch.compile. `lookup` and `assisted` are options of its `generate`.

    For the others the forward is called directly: `generate` does the same and more for every
    token.

    Raises:
      UserError: `assisted` has no small model.
    """
    if setup.name == "assisted" and setup.draft_model is None:
        raise UserError("needs a small model; pass it as --draft-model")
    # Read when PyTorch is imported. Compiled files are temporary, and compiled in this process.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(setup.work / "inductor")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(setup.threads)
    torch.set_grad_enabled(False)
    model = _model(setup.target, setup.precision)
    if setup.name == "lookup":
        decode = _generate(model, prompt_lookup_num_tokens=_LOOKUP)
    elif setup.name == "assisted":
        small = hub.resolve(str(setup.draft_model), patterns=hub.TARGET)
        decode = _generate(model, assistant_model=_model(small, setup.precision))
    elif setup.name == "compiled":
        decode = _compiled(model, setup.max_length)
    else:
        decode = _growing(model)
    return Loaded(setup.precision, decode)


def _model(directory: Path, precision: str) -> Any:
    """Loads a directory of transformers or, dequantised, a GGUF file, for endless texts."""
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
    options |= {"do_sample": False}

    def generate(prompt: np.ndarray, new_tokens: int) -> list[int]:
        ids = torch.tensor([prompt.tolist()])
        mask = torch.ones_like(ids)
        text = model.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, **options)
        return text[0, len(prompt) :].tolist()

    return whole(generate)


def _growing(model: Any) -> Decode:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    cache: Any = None

    def step(tokens: Sequence[int], position: int) -> int:
        nonlocal cache
        if position == 0:
            cache = transformers.DynamicCache(config=model.config)
        ids = torch.tensor([tokens])
        logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())

    return stepwise(step)


def _compiled(model: Any, max_length: int) -> Decode:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    cache = transformers.StaticCache(config=model.config, max_cache_len=max_length)

    def forward(ids: Any, positions: Any) -> Any:
        logits = model(
            input_ids=ids, position_ids=positions, past_key_values=cache, logits_to_keep=1
        ).logits
        return logits[0, -1].argmax()

    single = torch.compile(forward, dynamic=False, fullgraph=True)

    def step(tokens: Sequence[int], position: int) -> int:
        if position == 0:
            cache.reset()
        positions = torch.arange(position, position + len(tokens))[None]
        return int((single if len(tokens) == 1 else forward)(torch.tensor([tokens]), positions))

    return stepwise(step)
