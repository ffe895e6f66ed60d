"""Answers while the engine writes them: all that the app asks of the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from dart_jax.engine.request import Output, Request
from dart_jax.engine.thread import EngineThread
from dart_jax.errors import UserError
from dart_jax.generation import GeneratedText, GenerationConfig, Step
from dart_jax.generation.prompts import Prompt, encode_prompts


async def write(
    engine: EngineThread, prompt: Prompt, config: GenerationConfig
) -> AsyncGenerator[tuple[GeneratedText, list[Step], float], None]:
    """Yields a text so far, its steps after the first one, which has no draft, and their seconds,
    at once and after each step; closing the generator ends the decoding. Raises UserError if the
    prompt or an option is refused, too many requests wait, or the engine failed."""
    loop, inbox, model = asyncio.get_running_loop(), asyncio.Queue[Output](), engine.model
    tokenizer, size, began = model.tokenizer, model.target.vocab_size, 0.0
    (tokens,), _, strings, ids = encode_prompts(tokenizer, prompt, config, 1, model.eos, size)
    options: dict[str, Any] = {"seed": config.seed, "max_length": config.max_length}
    options |= {"stop_ids": ids, "drafts": True}
    request = Request(tokens.astype(np.int32), config.max_new_tokens, config.sampling, **options)
    text = GeneratedText(tokenizer, strings, ids, continues=isinstance(prompt, str))
    steps = list[Step]()
    ticket = engine.submit(request, lambda news: loop.call_soon_threadsafe(inbox.put_nowait, news))
    try:
        yield text, steps, 0.0
        while text.finish is None:
            output = await inbox.get()
            if output.error is not None:
                raise UserError(str(output.error))
            pieces = text.append(output.tokens, output.drafted)
            pieces += text.end() if output.finish else []
            if began:
                accepted = int(output.drafted.sum())
                steps.append(Step(pieces, output.tokens, accepted, output.draft))
            began = began or time.monotonic()
            yield text, steps, time.monotonic() - began
    finally:
        ticket.cancel()
