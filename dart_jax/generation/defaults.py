"""The draft tree that options ask for or that is the default, and the size of the cache."""

from __future__ import annotations

from typing import Any

import jax

from dart_jax.decoding.drafting import AnyDrafter, PromptLookupConfig
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.tree import MAX_NODES
from dart_jax.errors import UserError
from dart_jax.generation.config import GenerationConfig
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import Eagle3Config, ParallelConfig

# Sizes of trees between which steps choose, up to the largest.
_SIZES = (0, 1, 2, 4, 8, 16, 32)

# Rows of all sequences that an accelerator verifies in little more time than a single one: with
# more, a step waits for its computations and not for the weights.
_NEARLY_FREE = 200


def default_search(drafter: AnyDrafter | None = None, **options: Any) -> SearchConfig:
    """Returns the search parameters for a drafter: the paper's, unless `options` say otherwise.

    Pair scores know much of what the n-gram model knows, whose weight is halved beside them.
    """
    if isinstance(drafter, ParallelConfig) and drafter.pair_rank:
        options = {"ngram_weight": 0.25, **options}
    return SearchConfig(**options)


def default_tree(drafter: AnyDrafter | None = None, batch: int = 1) -> tuple[int, SearchConfig]:
    """Returns the default number of draft tree nodes, beside the root, and the search parameters.

    On CPU, where every row costs time, there are few, as many for a whole batch as for one
    sequence; elsewhere as many as in the reference implementations: 60 nodes for DART, and for
    block drafters, too, 59 for EAGLE-3, whose 60 include the root, and fewer in batches of more
    than 3 sequences. Methods that draft a single
    chain, such as a draft model, get short chains on every device.

    Args:
      drafter: the drafter; None for DART.
      batch: sequences decoded together.
    """
    batch = max(batch, 1)  # whoever decodes nothing is told later
    on_cpu = jax.default_backend() == "cpu"
    few = max(8 // batch, 1) if on_cpu else 8
    if isinstance(drafter, TargetConfig):
        return min(few, 4), SearchConfig()
    if isinstance(drafter, PromptLookupConfig):
        return few, SearchConfig()
    if on_cpu:
        return few, default_search(drafter)
    most = max(_NEARLY_FREE // batch - 1, 1)
    return min(59 if isinstance(drafter, Eagle3Config) else 60, most), default_search(drafter)


def adaptive_tree(
    drafter: AnyDrafter | None = None, batch: int = 1
) -> tuple[tuple[int, ...], SearchConfig]:
    """Returns the sizes of draft trees that steps choose from, and the search parameters.

    The sizes begin with 0 and end with the largest that can pay: twice `default_tree`'s on a CPU,
    where more are slower than plain decoding whatever is accepted, and `default_tree`'s elsewhere.

    Args:
      drafter: the drafter; None for DART.
      batch: sequences decoded together.
    """
    most, search = default_tree(drafter, batch)
    if not isinstance(drafter, TargetConfig) and jax.default_backend() == "cpu":
        most *= 2
    return (*(size for size in _SIZES if size < most), most), search


def tree_of(
    drafter: AnyDrafter | None, config: GenerationConfig, batch: int
) -> tuple[int, tuple[int, ...], SearchConfig]:
    """Returns the number of tree nodes to begin with, the sizes that follow, if they change, and
    the search parameters.

    Args:
      drafter: the drafter; None for plain decoding.
      config: the options.
      batch: sequences decoded together.
    """
    nodes, search = default_tree(drafter, batch)
    if drafter is None:
        return 0, (), search
    if config.tree_nodes is not None:
        return config.tree_nodes, (), config.search or search
    sizes, search = adaptive_tree(drafter, batch)
    return nodes, sizes, config.search or search


def check_sizes(drafter: AnyDrafter | None, nodes: int, sizes: tuple[int, ...]) -> None:
    """Raises UserError unless trees can have `nodes` nodes, and change between `sizes`."""
    for size in (nodes, *sizes):
        if not 0 <= size <= MAX_NODES:
            raise UserError(f"a tree cannot have {size} nodes; choose 0 to {MAX_NODES}")
    if nodes and drafter is None:
        raise UserError("no drafter was loaded; pass one, or decode with 0 nodes")
    if sizes and (sizes[0] != 0 or nodes not in sizes[1:] or sorted(set(sizes)) != [*sizes]):
        raise UserError(f"sizes must ascend from 0 and include {nodes} nodes, got {sizes}")


def length_bucket(tokens: int) -> int:
    """Rounds a sequence's cache length up to one of 128, 192, 256, 384, 512, 768, ...

    Programs are compiled per length, so there are few of them; above 128 at most a third is unused.
    """
    size = 128
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
