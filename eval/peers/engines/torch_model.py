"""transformers with PyTorch: its cached forward, as it is or compiled, and its own drafting."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.weights import hub
from eval.peers.engine import Engine, Setup, Stepwise, Whole
from eval.peers.layout import transformers_directory

# Tokens that prompt lookup drafts, as in the examples of its documentation.
_LOOKUP = 10


def load(setup: Setup) -> Engine:
    """Loads the model with a growing cache; `compiled`: with one of fixed length, and single tokens
    through torch.compile. `lookup` and `assisted` are options of its `generate`.

    For the others the forward is called directly: `generate` does the same and more for every
    token.

    Raises:
      UserError: `assisted` has no small model.
    """
    draft_model = setup.config.draft_model
    if setup.name == "assisted" and draft_model is None:
        raise UserError("needs a small model; pass it as --draft-model")
    # Read when PyTorch is imported. Compiled files are temporary, and compiled in this process.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(setup.work / "inductor")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(setup.threads)
    torch.set_grad_enabled(False)
    model = load_model(setup.transformers, setup.precision)
    if setup.name == "lookup":
        return _generate(model, setup.precision, prompt_lookup_num_tokens=_LOOKUP)
    if draft_model is not None and setup.name == "assisted":
        path = transformers_directory(
            hub.resolve(draft_model, patterns=hub.TARGET), setup.work / "draft_model"
        )
        return _generate(model, setup.precision, assistant_model=load_model(path, setup.precision))
    make = _compiled if setup.name == "compiled" else _growing
    return Stepwise(setup.precision, make(model, setup.max_length))


def load_model(directory: Path, precision: str) -> Any:
    """Loads a model with transformers, for inference."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, precision), local_files_only=True
    )
    return model.eval()


def _generate(model: Any, precision: str, **options: Any) -> Whole:
    torch: Any = importlib.import_module("torch")
    for each in (model, options.get("assistant_model")):
        if each is not None:
            each.generation_config.eos_token_id = None

    def generate(prompt: np.ndarray, new_tokens: int) -> list[int]:
        ids = torch.tensor([prompt.tolist()])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            **options,
        )
        return made[0, len(prompt) :].tolist()

    return Whole(precision, generate)


def _growing(model: Any, max_length: int) -> Callable[[Sequence[int], int], int]:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    cache: Any = None

    def step(tokens: Sequence[int], position: int) -> int:
        nonlocal cache
        if position == 0:
            cache = transformers.DynamicCache(config=model.config)
        with torch.inference_mode():
            ids = torch.tensor([tokens])
            logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
            return int(logits[0, -1].argmax())

    return step


def _compiled(model: Any, max_length: int) -> Callable[[Sequence[int], int], int]:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    cache = transformers.StaticCache(config=model.config, max_cache_len=max_length)

    def forward(ids: Any, positions: Any) -> Any:
        result = model(
            input_ids=ids, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        return result.logits[0, -1].argmax()

    single = torch.compile(forward, dynamic=False, fullgraph=True)

    def step(tokens: Sequence[int], position: int) -> int:
        if position == 0:
            cache.reset()
        ids = torch.tensor([tokens])
        positions = torch.arange(position, position + len(tokens))[None]
        return int((single if len(tokens) == 1 else forward)(ids, positions))

    return step
