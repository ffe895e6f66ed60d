"""Draft trees that are the default, and lengths of texts for which programs are compiled."""

from __future__ import annotations

from typing import Any

import jax

from dart_jax.decoding.drafting import AnyDrafter
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.models.traits import Traits

# Rows of all sequences that a step verifies, about: more cannot pay. An accelerator waits for its
# weights up to some hundred rows.
_ROWS, _ROWS_ON_CPU = 400, 80


def default_search(drafter: AnyDrafter | None = None, **options: Any) -> SearchConfig:
    """Returns the search parameters for a drafter: the paper's, unless `options` say otherwise.

    Pair scores know much of what the n-gram model knows, whose weight is halved beside them.
    """
    if drafter is not None and drafter.traits.pairs:
        options = {"ngram_weight": 0.25, **options}
    return SearchConfig(**options)


def default_tree(drafter: AnyDrafter | None = None, batch: int = 1) -> tuple[int, SearchConfig]:
    """Returns the default number of draft tree nodes, beside the root, and the search parameters.

    On CPU, where every row costs time, there are few, as many for a whole batch as for one
    sequence; elsewhere as many as in the reference implementations: 60 nodes for DART and block
    drafters, 59 for EAGLE-3, whose 60 include the root, and fewer in batches of more than 6
    sequences. Methods that draft a single chain, such as a draft model, get short chains on every
    device.

    Args:
      drafter: the drafter; None for DART.
      batch: sequences decoded together.
    """
    batch = max(batch, 1)
    on_cpu = jax.default_backend() == "cpu"
    few = max(8 // batch, 1) if on_cpu else 8
    traits = Traits(kind="DART") if drafter is None else drafter.traits
    most = few if on_cpu or traits.chain else max(_ROWS // batch - 1, 1)
    return min(traits.nodes, most), default_search(drafter)


def tree_sizes(drafter: AnyDrafter | None, rows: int = 1) -> tuple[int, ...]:
    """Returns the sizes of draft trees that steps choose from, ascending from 0.

    On a CPU a single sequence has up to twice `default_tree`'s nodes: more are slower than plain
    decoding whatever is accepted. There are few sizes, since programs are compiled for each.

    Args:
      drafter: the drafting method's config; None for plain decoding.
      rows: sequences that a step decodes together.
    """
    if drafter is None:
        return (0,)
    most, _ = default_tree(drafter)
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu and rows == 1 and not (drafter.traits.chain and drafter.traits.sequential):
        most *= 2
    sizes = [min(most, max((_ROWS_ON_CPU if on_cpu else _ROWS) // rows - 1, 1))]
    while len(sizes) < 3 and sizes[-1] > 1:
        sizes.append(max(sizes[-1] // 2, 1))
    return (0, *reversed(sizes))


def length_bucket(tokens: int) -> int:
    """Rounds a sequence's cache length up to one of 128, 192, 256, 384, 512, 768, ...

    Programs are compiled per length, so there are few of them; above 128 at most a third is unused.
    """
    size = 128
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
