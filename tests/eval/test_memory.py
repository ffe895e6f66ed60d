"""eval.memory: what it computes is what a loaded model holds."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from documents import ROOT

from dart_jax import DartModel
from dart_jax.decoding.prefill import prefill
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.step import verify
from dart_jax.generation.defaults import length_bucket
from dart_jax.model import DEMO
from dart_jax.models.platform.execution import Execution
from eval import memory
from eval.compile.cases import Case
from eval.latency.shapes import drafter_of, target_of
from eval.memory import MemoryConfig, cache_row, run

NODES, BATCH = 8, 3


def held(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def of(model, length, batch=BATCH, **options):
    """What the program computes for a model in float32."""
    return memory.memory(
        model.target,
        model.drafter,
        dtype="float32",
        length=length,
        batch_size=batch,
        tree_nodes=NODES,
        **options,
    )


def prefilled(model, length):
    """The shapes of the state after a prefill of this model."""
    config = DecodeConfig(model.target, model.drafter, NODES)
    numbers = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    return config, jax.eval_shape(
        partial(prefill, config, capacity=config.capacity(length_bucket(length))),
        model.params,
        jax.ShapeDtypeStruct((BATCH, 16), jnp.int32),
        numbers,
        numbers,
        jax.ShapeDtypeStruct((8,), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.uint32),
        Sampling().values(),
    )


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", ["drafter", "eagle3", "draft_model"])
def test_weights_and_caches_are_those_of_a_loaded_model(demo_drafters, name):
    model = DartModel.from_pretrained(DEMO / "target", demo_drafters[name])
    needed = of(model, 200)
    # On a CPU they are packed, and the demo's take 2 bytes each.
    assert needed.target == 4 * count(model.params["target"])
    assert needed.drafter == 4 * count(model.params["drafter"])
    _, (state, _) = prefilled(model, 200)
    assert needed.caches == held((state.target_cache, state.draft_state))
    assert of(model, 200) == of(model, 256) != of(model, 257)  # caches come in few lengths


@pytest.mark.parametrize("name", ["drafter", "eagle3", "draft_model"])
def test_weights_in_8_bits(demo_drafters, name):
    parts = DEMO / "target", demo_drafters[name]
    # On a mesh, if only of one device, in the form of accelerators.
    options = {"dtype": "float32", "weights_dtype": "int8", "mesh": "model=1"}
    loaded = DartModel.from_pretrained(*parts, **options)
    needed = of(loaded, 200, weights="int8")
    assert needed.target == held(loaded.params["target"])
    assert needed.drafter == held(loaded.params["drafter"])
    assert needed.caches == of(loaded, 200).caches


@pytest.mark.long
@pytest.mark.parametrize("shape", ["llama-3.1-70b", "qwen3-30b-a3b", "qwen3-4b"])
def test_both_programs_count_the_same_weights(shape):
    """`eval.compile` counts as many bytes, and besides the ids of the drafter's vocabulary."""
    rounded = Execution(rounded=True)
    target = target_of(shape)
    options = {"dtype": "bfloat16", "length": 200, "batch_size": 1, "tree_nodes": 8}
    found = memory.memory(target, drafter_of(target), **options, weights="int8")
    compiled = Case(shape, "dart", 8, 1, 200, 16, execution=rounded).weight_bytes
    assert found.target + found.drafter == compiled - 4 * target.vocab_size
    assert found.target < 0.6 * memory.memory(target, drafter_of(target), **options).target


def test_a_verification_returns_what_is_counted():
    model = DartModel.demo()
    config, (state, _) = prefilled(model, 200)
    trees = jax.ShapeDtypeStruct((BATCH, 3, NODES + 1), jnp.int32)
    verified = jax.eval_shape(partial(verify, config), model.params, state, trees)
    assert of(model, 200).verification == held(verified)


def test_a_directory_is_measured_as_its_shape(tmp_path):
    """Only `config.json` is read."""
    for name in ("target", "drafter"):
        (tmp_path / name).mkdir()
        config = (DEMO / name / "config.json").read_bytes()
        (tmp_path / name / "config.json").write_bytes(config)
    given = run(MemoryConfig(target=str(tmp_path / "target")))
    assert given.splitlines()[2].startswith("| target | 0.0")
    named = run(MemoryConfig(shape=("demo",)))
    assert given.splitlines()[2].split("|")[2:] == named.splitlines()[2].split("|")[2:]
    own = run(MemoryConfig(target=str(tmp_path / "target"), drafter=str(tmp_path / "drafter")))
    assert own.splitlines()[:2] == given.splitlines()[:2]


def test_everything_but_weights_grows_with_the_batch():
    model = DartModel.demo()
    one, three = of(model, 100, 1), of(model, 100, 3)
    assert (three.target, three.drafter) == (one.target, one.drafter)
    assert three.caches == 3 * one.caches
    assert three.verification == 3 * one.verification
    assert three.total - one.total == 2 * (one.caches + one.verification)


def test_the_documented_table_is_what_the_program_prints():
    page = (ROOT / "docs/memory.md").read_text()
    assert run(MemoryConfig()) in page
    for name, target, _ in MemoryConfig().models():
        assert f"| {name} | {cache_row(target, 2) / 1e3:,.0f} kB |" in page
