"""The baseline without a server: fixed batches through `DartModel.generate` in this process.

A batch takes as many requests as there are clients, up to a limit; its texts begin together, and
all wait until the last one has ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from dart_jax.model import DartModel
from eval.serving.client.completion import Answer, Request
from eval.serving.client.metrics import Counters
from eval.serving.summary import Round


def measure_fixed(
    model: DartModel,
    requests: Sequence[Request],
    size: int,
    tree_nodes: int | None = None,
) -> Round:
    """Answers requests in batches of `size`, in order.

    What a text has beyond its own number of tokens is dropped, and time for compiling is not
    counted: a server does that before. Sampled texts are not a server's: a batch has one seed.
    """
    answers: list[Answer] = []
    now, cpu = 0.0, time.process_time()
    for place in range(0, len(requests), size):
        batch = requests[place : place + size]
        began = time.perf_counter()
        completions = model.generate(
            [np.array(request.prompt, np.int32) for request in batch],
            max_new_tokens=max(request.max_tokens for request in batch),
            temperature=batch[0].temperature,
            seed=batch[0].seed,
            eos_token_id=() if batch[0].ignore_eos else None,
            tree_nodes=tree_nodes,
        )
        spent = time.perf_counter() - began - completions[0].seconds.get("compile", 0.0)
        start, now = now, now + spent
        for request, completion in zip(batch, completions, strict=True):
            tokens = completion.tokens[: request.max_tokens]
            whole = len(tokens) == len(completion.tokens)
            text = completion.text if whole else model.tokenizer.decode(tokens.tolist())
            answers.append(
                Answer(start, start, [now], now, text, "length", len(tokens), len(request.prompt))
            )
    return Round(answers, now, Counters({}), (time.process_time() - cpu) / now, False)
