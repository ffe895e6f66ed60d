"""What an n-gram table's size on the device gives: bytes against acceptance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.generation.defaults import default_search
from dart_jax.model import DartModel
from dart_jax.ngram.device_table import TableSize, device_table, table_bytes


class Size(NamedTuple):
    """A table and the acceptance it gives.

    Attributes:
      share: of the n-grams that are in the table.
      table: what it holds.
      tau: tokens per verification.
      identical: prompts with the tokens of plain decoding.
    """

    share: float
    table: TableSize
    tau: float
    identical: int


def measure_sizes(
    model: DartModel,
    prompts: Sequence[np.ndarray],
    shares: Sequence[float],
    nodes: int,
    max_new_tokens: int,
    notify: Callable[[str], None] = lambda _: None,
) -> Iterator[Size]:
    """Decodes prompts greedily with tables of the most frequent n-grams; with none, the search has
    only the drafter's scores."""
    assert model.ngram is not None
    length = max(map(len, prompts)) + max_new_tokens
    plain = model.with_drafter(None).decoder(nodes=0, max_length=length)
    notify("plain decoding")
    expected = [plain([prompt], max_new_tokens).tokens[0] for prompt in prompts]
    decoder = model.decoder(nodes=nodes, max_length=length)
    for share in shares:
        notify(f"{share:.0%} of the n-grams")
        ngrams = round(share * sum(model.ngram.sizes[1:]))
        table, size = device_table(model.ngram, table_bytes(ngrams) if share < 1 else None)
        search = DeviceSearch(
            decoder.config.host_buffer,
            nodes,
            table=jax.tree.map(jnp.asarray, table) if size.ngrams else None,
            eos=model.eos,
            search=default_search(model.drafter),
        )
        made = dataclasses.replace(decoder, search=search, loop="fused")
        generations = [made([prompt], max_new_tokens) for prompt in prompts]
        # The first token is the prefill's.
        emitted = sum(len(each.tokens[0]) - 1 for each in generations)
        steps = sum(int(each.steps[0]) for each in generations)
        identical = sum(
            np.array_equal(each.tokens[0], tokens)
            for each, tokens in zip(generations, expected, strict=True)
        )
        yield Size(share, size, emitted / max(steps, 1), identical)
