"""eval.memory: what it computes is what a loaded model holds."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import Prompts, start
from documents import ROOT
from needs import native

from dart_jax import DartModel
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.step import verify
from dart_jax.engine.shapes import length_bucket
from dart_jax.model import DEMO
from dart_jax.ngram import NgramModel
from dart_jax.ngram.device_table import device_table
from eval.memory import MemoryConfig, columns, memory, rows

NODES, BATCH = 8, 3
OPTIONS = MemoryConfig(dtype="float32", batch_size=BATCH, tree_nodes=NODES)


def held(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def of(model, length=200, **options):
    """The memory that the program computes for a model in float32."""
    options = dataclasses.replace(OPTIONS, length=length, **options)
    return memory(model.target, model.drafter, options)


def begun(model, length):
    """The shapes of the state after the first step of this model."""
    config = DecodeConfig(model.target, model.drafter, NODES, execution=model.execution)
    prompts = Prompts.pad(BATCH * [np.ones(4, int)], 9, length_bucket(length))
    return config, jax.eval_shape(lambda: start(config, model.params, prompts))


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("kv", ["float32", pytest.param("bfloat16", marks=native)])
@pytest.mark.parametrize("name", ["drafter", "eagle3", "draft_model"])
def test_weights_and_caches_are_those_of_a_loaded_model(demo_drafters, name, kv):
    model = DartModel.from_pretrained(DEMO / "target", demo_drafters[name], kv=kv)
    need = of(model, kv=kv)
    # On a CPU they are packed, and the demo's take 2 bytes each.
    for part in ("target", "drafter"):
        leaves = jax.tree.leaves(model.params[part])
        assert getattr(need, part) == 4 * sum(leaf.size for leaf in leaves)
    _, (state, _) = begun(model, 200)
    assert need.caches == held((state.target_cache, state.draft_state))
    alone = of(model, batch_size=1, kv=kv)
    assert alone[:2] == need[:2]
    assert [BATCH * size for size in alone[2:]] == [*need[2:]]


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", ["drafter", "eagle3", "draft_model"])
def test_weights_in_8_bits(demo_drafters, name):
    parts = DEMO / "target", demo_drafters[name]
    # On a mesh, if only of one device, in the form of accelerators.
    options = {"dtype": "float32", "weights": "int8", "mesh": "model=1"}
    loaded = DartModel.from_pretrained(*parts, **options)
    need = of(loaded, weights="int8")
    assert need[:2] == (held(loaded.params["target"]), held(loaded.params["drafter"]))


def test_a_verification_returns_what_is_counted():
    model = DartModel.demo()
    config, (state, _) = begun(model, 200)
    trees = jax.ShapeDtypeStruct((BATCH, 4, NODES + 1), jnp.int32)
    verified = jax.eval_shape(partial(verify, config), model.params, state, trees)
    assert of(model).verification == held(verified)


def test_a_directory_is_measured_as_its_shape(tmp_path):
    """Only `config.json` is read."""
    for name in ("target", "drafter"):
        (tmp_path / name).mkdir()
        config = (DEMO / name / "config.json").read_bytes()
        (tmp_path / name / "config.json").write_bytes(config)
    target, drafter = (str(tmp_path / name) for name in ("target", "drafter"))
    [own] = rows(MemoryConfig(target=target))
    [shape] = rows(MemoryConfig(shape=("demo",)))
    assert own == ["target", *shape[1:]]
    [both] = rows(MemoryConfig(target=target, drafter=drafter))
    assert both[:2] == own[:2]


def test_the_documented_table_is_what_the_program_prints():
    page = (ROOT / "docs/memory.md").read_text()
    for row in rows(MemoryConfig()):
        assert f"| {' | '.join(row)} |\n" in page


def test_what_fits_a_device():
    """As long as asked or longer; otherwise in 8 bits, otherwise on several devices."""
    shapes = "qwen3-1.7b", "qwen3-8b", "qwen3-14b", "llama-3-70b"
    config = MemoryConfig(shape=shapes, device="t4")
    assert config.kind == np.float16
    found = rows(config)
    assert [row[-1] for row in found] == ["40,960", "int8: 10,240", "4 devices", "int8, 8 devices"]
    for row in found:
        assert len(row) == len(columns(config))
        room = float(row[-2]) + float(row[-3])
        assert room == pytest.approx(0.9 * 0.9 * 16, abs=0.15)
    # The longest text fits, and one of twice its length does not.
    (_, target, drafter), *_ = MemoryConfig(shape=("qwen3-4b",)).models()
    for length, fits in ((20_480, True), (40_960, False)):
        need = memory(target, drafter, dataclasses.replace(config, length=length))
        assert (sum(need) <= 0.9 * 0.9 * 16e9) == fits
    alone, shared = memory(target, drafter, config), memory(target, drafter, config, 2)
    table = 2 * target.vocab_size * target.hidden_size  # tied alone; whole on each of the two
    assert 2 * (shared.target - table) == alone.target
    assert (2 * shared.drafter, 2 * shared.caches) == (alone.drafter, alone.caches)
    config = MemoryConfig(shape=("llama-3-70b",), device="t4", length=8192, batch_size=16)
    assert rows(config)[0][-1] == "no"
    config = MemoryConfig(shape=("qwen3-4b",), device="t4", ngram=DEMO / "ngram.dng")
    [row] = rows(config)
    assert row[columns(config).index("n-grams")] == f"{config.table / 1e9:.1f}"
    table = device_table(NgramModel.load(DEMO / "ngram.dng"))
    assert config.table == pytest.approx(held(table), rel=0.01)
