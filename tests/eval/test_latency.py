"""eval.latency: shapes, costs, timing and the program."""

import dataclasses
import io
import json
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import step
from rich.console import Console

from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.models.config import MoEConfig
from dart_jax.models.networks.sizes import weight_bytes
from dart_jax.models.platform.execution import Execution
from eval.latency import steps
from eval.latency.config import LatencyConfig
from eval.latency.program import number, run
from eval.latency.shapes import cost, drafter_of, random_model, target_of
from eval.latency.steps import Hardware, Repeated

CONTEXT, NODES = 20, 12
SLOW = Hardware(1e9, 1e11, 2**40)
TINY = target_of("tiny")

PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
}


@pytest.fixture(scope="module")
def model():
    return random_model("tiny", jnp.float32, Execution.here())


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name):
    assert weight_bytes(target_of(name.title()), jnp.float32) == 4 * PUBLISHED[name]


# Costs: D 64, F 96, L 7, H 4, K 2, h 16, V 512; d 8, of which 7 are mask rows.

LAYER = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96  # q; k and v; o; gate, up and down
CACHED = 7 * 2 * 2 * 16 * 4  # bytes of a row: layers, keys and values, heads, size, float32


def of_tiny(nodes=60, target=TINY, batch=1):
    config = DecodeConfig(target, drafter_of(TINY) if nodes else None, nodes)
    return cost(config, jnp.float32, batch, 100)


def test_bytes_and_operations_by_hand():
    weights = 7 * (LAYER + 2 * 64 + 2 * 16) + 64 + 64 * 512
    assert 4 * weights == weight_bytes(TINY, jnp.float32)  # its tied head is read as a head
    plain, tree = of_tiny(0), of_tiny()
    assert plain.bytes == 4 * (weights + 64) + CACHED * 101
    # Each head: scores and sums over 101 keys of 16 numbers.
    assert plain.operations == 2 * (7 * LAYER + 64 * 512 + 7 * 4 * 2 * 16 * 101)
    read = 4 * (weights + 61 * 64) + CACHED * 109
    operations = 61 * 2 * (7 * LAYER + 64 * 512 + 7 * 4 * 2 * 16 * 161)

    drafter = 192 * 64 + 128 * 64 + 2 * 128 * 32 + 64 * 64 + 3 * 64 * 96 + 6 * 64 + 64 * 512
    assert 4 * drafter == weight_bytes(drafter_of(TINY), jnp.float32)
    traffic = 4 * drafter + 9 * 64 * 4 + 2 * 2 * 16 * 4 * 109
    products = 9 * 192 * 64  # features
    products += 10 * 128 * 64 + 2 * 128 * 64  # keys and values of 10 rows, queries of 2
    products += 8 * (64 * 64 + 3 * 64 * 96) + 4 * 2 * 16 * 8 * 116 + 8 * 64 * 512
    assert tree == (read + traffic + 8 * 25 * 8, operations + 2 * products)


def test_a_mixture_reads_the_experts_that_rows_reach():
    moe = MoEConfig(4, 2, 32, norm_topk_prob=True, shared_intermediate_size=16)
    target, expert = dataclasses.replace(TINY, moe=moe), 3 * 64 * 32
    few, more = (of_tiny(0, target, batch) for batch in (1, 2))
    # Two rows reach three of four experts, one row two.
    assert more.bytes - few.bytes == 4 * 7 * expert + 4 * 64 + CACHED * 101
    products = few.operations - of_tiny(0).operations
    assert products == 2 * 7 * (2 * expert + 3 * 64 * 16 + 64 * 4 + 64 - 3 * 64 * 96)


# Timing.


def test_every_call_is_made_and_timed():
    run = jax.jit(lambda one, count: (count + one, count), donate_argnums=1)
    counting = Repeated(
        run.lower(jnp.int32(1), jnp.int32(0)).compile(), (jnp.int32(1),), jnp.int32(0)
    )
    times = counting.measure(3)
    calls, rest = divmod(int(counting.donated) - 2 * 3, 3)
    assert (rest, len(times)) == (0, 3)  # three calls before, to find how many
    assert 2 <= calls <= 256
    assert min(times) > 0


def test_a_repeated_step_is_a_decode_step(model):
    """Every call computes the same, since only the rows after the context are written."""
    config = DecodeConfig(model.target, model.drafter, NODES, execution=model.execution)
    state, packed = steps.prepared_state(config, model.params, 2, CONTEXT)
    assert state.length.tolist() == [CONTEXT] * 2
    trees = jnp.asarray(HostSearch(config.host_buffer, NODES)(np.asarray(packed)))
    caches = jax.tree.map(jnp.copy, (state.target_cache, state.draft_state))
    small = dataclasses.replace(state, target_cache=(), draft_state=None)
    repeated = steps.repeated_step(config, model.params, small, trees, caches)
    once = repeated.program(*repeated.fixed, repeated.donated)
    twice = repeated.program(*repeated.fixed, once[0])
    _, expected = step(config, model.params, state, trees)
    np.testing.assert_array_equal(twice[1], expected)


# The program.


@pytest.mark.long
def test_report(monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "limits", lambda dtype: SLOW)
    file, path = io.StringIO(), tmp_path / "out" / "latency.json"
    options = {"context": (CONTEXT,), "tree_nodes": (4, NODES), "batch_size": (1, 2)}
    config = LatencyConfig(("Tiny",), **options, repeats=2, json=path)
    run(config, Console(file=file, width=80))
    text, content = file.getvalue(), json.loads(path.read_text())
    settings = [(x["shape"], x["context"], x["batch"]) for x in content["cases"]]
    assert settings == [("tiny", CONTEXT, b) for b in (1, 2)]
    for result in content["cases"]:
        rows = {(row["stage"], row["nodes"]): row for row in result["stages"]}
        sized = {(name, nodes) for name in ("search", "step") for nodes in (4, NODES)}
        assert set(rows) == {("plain step", 0)} | sized
        for (name, _), row in rows.items():
            assert len(row["seconds"]) == 2
            assert min(row["seconds"]) > 0
            if name == "search":
                assert row["limit"] is None
                continue
            limit = max(row["bytes"] / 1e9, row["operations"] / 1e11)
            assert row["limit"] == pytest.approx(limit)
            seconds = statistics.median(row["seconds"])
            assert f" {number(1e3 * seconds)} " in text
    assert "tiny, random weights, batch 2, context 20" in text
    assert max(map(len, text.splitlines()[1:])) <= 80


def test_what_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(steps, "limits", lambda dtype: SLOW._replace(memory=10**6))
    with pytest.raises(UserError, match="tiny with batch 1 and context 20 needs more than"):
        run(LatencyConfig(("tiny",), context=(20,)), Console(file=io.StringIO()))
    with pytest.raises(UserError, match="--context must be at most 40951 with --shape tiny"):
        LatencyConfig(("tiny",), context=(50000,))
