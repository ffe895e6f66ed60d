"""transformers with PyTorch: its cached forward, as it is or compiled."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from eval.peers.engine import Setup, Stepwise


def load(setup: Setup) -> Stepwise:
    """Loads the model with a growing cache; `compiled`: with one of fixed length, and single tokens
    through torch.compile.

    The forward is called directly: `generate` does the same and more for every token.
    """
    # Read when PyTorch is imported. Compiled files are temporary, and compiled in this process.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(setup.work / "inductor")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(setup.threads)
    torch.set_grad_enabled(False)
    model = load_model(setup, setup.precision)
    make = _compiled if setup.name == "compiled" else _growing
    return Stepwise(setup.precision, make(model, setup.max_length))


def load_model(setup: Setup, precision: str) -> Any:
    """Loads the target with transformers, for inference."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        setup.target, dtype=getattr(torch, precision), local_files_only=True
    )
    return model.eval()


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
