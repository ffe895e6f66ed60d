"""The engine's programs on other platforms, and what they leave in place."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_requests import ask, lists

from dart_jax.decoding.drafting.text import LONGEST
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.reading import ChunkShape
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.pools import copy_page
from dart_jax.engine.programs import burst, read_chunk
from dart_jax.engine.request import Request
from dart_jax.engine.rows import empty_history
from dart_jax.engine.thread import EngineThread
from dart_jax.model import DartModel
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.weights import WeightsForm

CONFIG = EngineConfig(slots=2, page=16, max_length=128, warmup="none", tree_nodes=4)
PLAIN = Execution()
END = np.int32(4), np.int32(1)  # of a burst
KERNELS = {
    "plain JAX": PLAIN,
    "triton": Execution("interpret", min_rows=8, weights=WeightsForm(fused=True)),
    "mosaic": Execution("interpret-mosaic"),
}


def load(tiny, execution, monkeypatch, **options):
    """The model as another platform computes it."""
    monkeypatch.setattr(Execution, "here", classmethod(lambda *_: execution))
    return DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram, **options)


@pytest.mark.long
@pytest.mark.parametrize("name", list(KERNELS))
def test_every_kernel_serves_the_same_texts(tiny, name, monkeypatch):
    model = load(tiny, KERNELS[name], monkeypatch)
    engine = EngineThread(model, dataclasses.replace(CONFIG, chunk=64))
    requests, expected = [], []
    for n, tokens in enumerate(tiny.prompts):
        options = {"temperature": n % 2 * 0.8, "seed": n, "eos_token_id": ()}
        plain = model.generate(tokens.tolist(), max_new_tokens=9, tree_nodes=0, **options)
        expected.append(plain.tokens.tolist())
        sampling = Sampling(options["temperature"])
        requests.append(Request(tokens.astype(np.int32), 9, sampling, seed=n))
    answers = ask(engine, *requests)
    engine.close()
    assert lists(answers) == expected


def traced(runner, mode):
    """The programs of a step, a prompt's chunk and a copy, with what they update."""
    program = runner.program(4, mode)
    trees = np.zeros((2, 4, 5), np.int32)
    rows = runner._table.rows([None, None], runner.shapes.pages_each, tokens=True)
    history = empty_history(runner.shapes.slots, runner.vocab_size) if mode == "full" else None
    trust = np.ones(LONGEST, np.float32)
    params, pools, search = runner.params, runner._pools, runner.search
    table = jnp.full((1, runner.shapes.pages_each), -1, jnp.int32)
    tokens, start = jnp.zeros((1, 33), jnp.int32), jnp.zeros((1,), jnp.int32)
    shape = ChunkShape(32, runner.shapes.filled(0))
    reading = runner.config.reading, params, pools, tokens, start, table
    return (
        (
            burst.trace(program, params, pools, history, rows, trees, search, *END, trust=trust),
            (pools, history),
        ),
        (read_chunk.trace(*reading, shape=shape), pools),
        (copy_page.trace(runner.config.reading, pools, *np.zeros((2, 1), np.int32)), pools),
    )


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("mode", ["greedy", "full"])
def test_programs_are_lowered_for_accelerators(tiny, mode, platform, monkeypatch):
    """Without a device of that kind; nothing in them calls the host."""
    runner = load(tiny, PLAIN, monkeypatch, search="device").engine(CONFIG).runner
    for program, _ in traced(runner, mode):
        text = program.lower(lowering_platforms=(platform,)).as_text()
        assert "callback" not in text
        assert "@dart_" not in text


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("mode", ["greedy", "full"])
def test_pools_are_updated_in_place(tiny, mode):
    """No program copies a pool: the compiled programs hold no copy of that size."""
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)
    runner = model.engine(CONFIG).runner
    pool = runner._pools.target[0][0]
    shape = f"f32[{','.join(map(str, pool.shape))}]"
    for program, updated in traced(runner, mode):
        compiled = program.lower().compile()
        text = compiled.as_text()
        assert shape in text
        copies = [line for line in text.splitlines() if "copy(" in line and shape in line]
        assert copies == []
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(updated))
        assert compiled.memory_analysis().alias_size_in_bytes >= size
