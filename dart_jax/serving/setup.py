"""A server's runner of a model: its shapes and memory, and programs that are compiled first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import numpy as np

from dart_jax.decoding.drafting import AnyDrafter
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.tree import MAX_NODES
from dart_jax.engine.batch import Models
from dart_jax.engine.request import MOST_STOP_IDS
from dart_jax.engine.rows import SamplingMode
from dart_jax.engine.runner import Runner
from dart_jax.engine.scheduler import Sequence
from dart_jax.engine.shapes import STEP, Shapes, stepwise_sizes, up_to
from dart_jax.engine.tree_size import TreeSizes
from dart_jax.errors import UserError
from dart_jax.generation.defaults import default_search, default_tree
from dart_jax.memory import parse_memory
from dart_jax.model import DartModel
from dart_jax.serving.config import ServingConfig

# Tokens of the longest texts, unless it is set.
_MAX_LENGTH = 8192

# Bytes of the pools, at most, unless it is set.
_MOST_MEMORY = {"cpu": 4 * 10**9}
_MOST_MEMORY_ELSEWHERE = 8 * 10**9

# Rows of all sequences that a step verifies, about: more cannot pay. An accelerator waits for its
# weights up to some hundred rows.
_MOST_ROWS = {"cpu": 80}
_MOST_ROWS_ELSEWHERE = 400

# A burst: on an accelerator a call from the host takes as long as half a step, on a CPU as long as
# several of a small model; but requests arrive, and streamed texts are read, meanwhile.
_STEPS = 32
_BURST_SECONDS = 0.03


def runner_of(
    model: DartModel,
    config: ServingConfig,
    on_end: Callable[[Sequence], None],
) -> Runner:
    """Returns a runner that serves a model.

    Raises:
      UserError: the options do not fit the model.
    """
    shapes = shapes_of(model, config)
    decoder = model.decoder(
        nodes=shapes.most_nodes, max_length=shapes.max_length, search=default_search(model.drafter)
    )
    models = decoder.models
    sizes = TreeSizes(
        shapes.sizes,
        fixed=shapes.fixed,
        stepwise=shapes.stepwise,
        first=default_tree(model.drafter)[0],
        files=decoder.memory.files,
        program=(models.config, jax.tree.structure(models.search), "server"),
    )
    pages = _count_pages(models, config, shapes)
    return Runner(
        models,
        shapes,
        sizes,
        on_end,
        pages=pages,
        reuse=config.prefix_cache,
        burst_seconds=None if config.burst else _BURST_SECONDS,
    )


def shapes_of(model: DartModel, config: ServingConfig) -> Shapes:
    """Returns the shapes for a model; raises UserError if the options do not fit it."""
    most = model.target.max_length
    length = config.max_length or min(most, _MAX_LENGTH)
    if length > most:
        raise UserError(f"--max-length {length} is beyond the target's {most} positions; lower it")
    if config.tree_nodes and model.drafter is None:
        raise UserError("--tree-nodes needs a drafter; pass one, or leave it out")
    if (config.tree_nodes or 0) > MAX_NODES:
        raise UserError(f"--tree-nodes must be at most {MAX_NODES}, got {config.tree_nodes}")
    on_cpu, groups = jax.default_backend() == "cpu", model.execution.devices.groups
    slots = -(-config.slots // groups)
    # On CPUs every row costs time, so a step has at most twice the rows of its sequences.
    rows = up_to(slots, STEP // 2 if on_cpu else STEP)
    chunk = min(config.chunk or (128 if on_cpu else 512), length)
    nodes = default_tree(model.drafter)[0]
    decoding = DecodeConfig(model.target, model.drafter, nodes, execution=model.execution)
    stepwise = decoding.decides_in_steps and groups == 1
    sizes = {n: _sizes(model.drafter, n, config.tree_nodes) for n in rows}
    if stepwise and config.tree_nodes is None:
        sizes[1] = stepwise_sizes(sizes[1][-1])
    only_used = decoding.reads_only_used
    chunks = {chunk} if only_used else {max(chunk // STEP**n, 1) for n in range(3)}
    return Shapes(
        slots=slots * groups,
        groups=groups,
        max_length=length,
        page=config.page,
        pages_each=-(-length // config.page),
        rows=rows,
        sizes=sizes,
        stepwise=stepwise,
        fixed=config.tree_nodes is not None,
        chunks=tuple(sorted(chunks)),
        only_used=only_used,
        together=not on_cpu,
        steps=config.burst or _STEPS,
        stop_ids=MOST_STOP_IDS,
        bounded=model.execution.attention == "dense",
    )


def _sizes(drafter: AnyDrafter | None, rows: int, fixed: int | None) -> tuple[int, ...]:
    """Returns tree sizes for steps of so many rows; `fixed` if it is not None."""
    if drafter is None or fixed == 0:
        return (0,)
    if fixed is not None:
        return (0, fixed)
    budget = _MOST_ROWS.get(jax.default_backend(), _MOST_ROWS_ELSEWHERE)
    largest, _ = default_tree(drafter)
    most = min(largest, max(budget // rows - 1, 1))
    sizes = [most]
    while len(sizes) < 3 and sizes[-1] > 1:
        sizes.append(max(sizes[-1] // 2, 1))
    return (0, *reversed(sizes))


def _count_pages(models: Models, config: ServingConfig, shapes: Shapes) -> int:
    """Returns how many pages of each group of devices the memory holds."""
    page = jax.tree.leaves(jax.eval_shape(lambda: models.pools(1, shapes.page)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in page) // shapes.groups
    wanted = shapes.slots // shapes.groups * shapes.pages_each
    if config.kv_memory is None:
        most = _MOST_MEMORY.get(jax.default_backend(), _MOST_MEMORY_ELSEWHERE)
        return max(min(wanted, most // size), shapes.pages_each)
    count = parse_memory(config.kv_memory) // size
    if count < shapes.pages_each:
        least = shapes.pages_each * size / 1e6
        raise UserError(
            f"--kv-memory {config.kv_memory} is too little for one request of "
            f"{shapes.max_length} tokens, which takes {least:,.0f} MB; raise it or lower "
            "--max-length"
        )
    return count


class Compiled(NamedTuple):
    """Progress of a compilation.

    Attributes:
      done: programs that have been compiled.
      count: of all.
      enough: whether a single text can be written without others.
    """

    done: int
    count: int
    enough: bool

    def __str__(self) -> str:
        return f"compiled {self.done} of {self.count} programs"


def compile_programs(
    runner: Runner, config: ServingConfig, mode: SamplingMode
) -> Iterator[Compiled]:
    """Runs the programs that requests may run, one at a time, the most important ones first. No
    request may run during a part; between two they may.

    Args:
      runner: has the programs.
      config: the options.
      mode: how requests sample that say nothing of it.

    Yields:
      After every part, what has been done.
    """
    batch, shapes = runner.batch, runner.batch.shapes
    if not config.modes:
        return

    def read(length: int, start: int, drafts: bool, scored: bool = False) -> None:
        pages = np.full((shapes.groups, shapes.pages_each), -1, np.int32)
        tokens = np.zeros((shapes.groups, length + 1), np.int32)
        starts, used = np.full(shapes.groups, start, np.int32), 1 if shapes.only_used else None
        batch.read_tokens(tokens, starts, pages, used, drafts=drafts, scored=scored)

    def burst(mode: SamplingMode, rows: int, width: int, size: int, **others: bool) -> None:
        batch.compile(batch.program(size, mode, **others), rows, width)

    drafts, one, narrow = shapes.most_nodes > 0, shapes.rows[0], shapes.widths[0]
    size = runner.sizes.choose(one, "greedy").size
    first: list[SamplingMode] = [each for each in config.modes if each in ("greedy", mode)]
    works = [
        partial(read, shapes.chunks[0], 0, drafts),
        partial(read, shapes.chunks[-1], 0, drafts),
    ]
    works += [partial(burst, each, one, narrow, size) for each in first]
    works += [partial(batch.compile_beginning, mode)]
    works += [partial(batch.copy, 0, 0)] * config.prefix_cache
    enough = len(works)
    works += [partial(read, *read_, drafts) for read_ in shapes.reads]
    works += [partial(burst, each, one, narrow, size, masked=True) for each in first]
    works += [partial(batch.compile_beginning, each) for each in config.modes]
    works += [partial(read, *read_, False) for read_ in shapes.reads if drafts]
    # Those under a grammar last: fewer texts are.
    for masked, each, rows in product((False, True), config.modes, shapes.rows):
        for width in shapes.widths:
            every = partial(burst, each, rows, width, masked=masked)
            works += [partial(every, nodes) for nodes in shapes.sizes[rows]]
            if drafts and not shapes.fixed:
                works.append(partial(every, 0, follows=True))
    for drafted, read_ in product({drafts, False}, shapes.reads):
        works.append(partial(read, *read_, drafted, scored=True))
    for done, work in enumerate(works, 1):
        work()
        yield Compiled(done, len(works), done >= enough)
