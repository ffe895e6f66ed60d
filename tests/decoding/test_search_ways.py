"""Every way of searching gives the same tokens, in the same steps; one on the device leaves nothing
to the host."""

import logging
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SEED, sequences
from decoding import Options, generate

from dart_jax.decoding.drafting import NgramConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search import choice
from dart_jax.decoding.search.choice import check_way, make_search, way_here
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.config import EngineConfig
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.ngram import NgramModel

GREEDY, SAMPLED = Sampling(), Sampling(0.9, top_k=30)
NATIVE = choice.why_not_native() is None  # not for another jaxlib than it was built for
WAYS = ("callback", "device", *(["native"] if NATIVE else []))
EOS = (511,)


@pytest.fixture(scope="module")
def ngram(models, prompts, plain):
    """N-grams of the texts that the target writes, so that much is accepted."""
    texts = [row for how in (GREEDY, SAMPLED) for row in sequences(prompts, plain(how).tokens)]
    return NgramModel.count(texts, order=4, vocab_size=models.target.vocab_size)


@pytest.fixture(params=["DART", "DART with pair scores", "n-grams only"])
def method(request, models, scored):
    """A drafter and the parameters."""
    if request.param == "n-grams only":
        return NgramConfig(), {"target": models.params["target"]}
    return scored if "pair" in request.param else (models.drafter, models.params)


def make(config, ngram, way):
    return make_search(
        config.host_buffer, config.nodes, ngram=ngram, eos=EOS, search=SearchConfig(), way=way
    )


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(("sampling", "nodes"), [(GREEDY, 12), (SAMPLED, 5)])
def test_tokens_and_steps_are_the_same(models, prompts, plain, ngram, method, sampling, nodes):
    drafter, params = method
    config = DecodeConfig(models.target, drafter, nodes)
    options = Options(sampling, seed=SEED)
    steps = []
    for way in WAYS:
        if way == "device" and drafter == NgramConfig():
            continue
        search = make(config, ngram, way)
        assert search.way == way
        generation = generate(config, params, search, prompts, options)
        for row, expected in zip(generation.tokens, plain(sampling).tokens, strict=True):
            np.testing.assert_array_equal(row, expected)
        steps.append(generation.steps)
    np.testing.assert_array_equal(steps, np.broadcast_to(steps[0], np.shape(steps)))
    share = 0.8 if drafter == NgramConfig() else 1  # the others' weights are random
    assert steps[0].sum() < share * plain(sampling).steps.sum()


@pytest.mark.parametrize("way", WAYS)
def test_a_model_searches_where_it_is_told(tiny, way):
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram, search=way)
    search = model.engine(EngineConfig(max_length=64, tree_nodes=6)).runner.search
    assert search is not None
    assert search.way == way


CACHED = """
import sys
import jax
from dart_jax import DartModel

target, drafter, ngram, way = sys.argv[1:]
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
model = DartModel.from_pretrained(target, drafter, ngram, search=way)
text = model.generate("import", tree_nodes=6, max_new_tokens=8)
print(*(events.count(f"/jax/compilation_cache/cache_{kind}") for kind in ("hits", "misses")))
"""


@pytest.mark.long
@pytest.mark.parametrize("way", [way for way in WAYS if way != "callback"])
def test_a_second_process_finds_the_program(tiny, tmp_path, monkeypatch, way):
    # Not the cache of all tests, where another may have put the programs.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    command = [sys.executable, "-c", CACHED, *map(str, (tiny.target, tiny.drafter, tiny.ngram))]
    counts = []
    for _ in range(2):
        done = subprocess.run([*command, way], check=True, capture_output=True, text=True)
        counts.append([*map(int, done.stdout.split()[-2:])])
    (_, first_misses), (hits, misses) = counts
    assert first_misses > 3
    assert (hits > 3, misses) == (True, 0)


@pytest.mark.skipif(not NATIVE, reason="XLA cannot call the C++ search")
def test_a_trial_finds_what_goes_wrong(monkeypatch):
    assert choice.try_native() is None

    def fails(self, packed):
        raise jax.errors.JaxRuntimeError("INTERNAL: no such symbol\nat some place")

    monkeypatch.setattr(HostSearch, "in_program", fails)
    assert choice.try_native() == "XLA failed to call the C++ search: INTERNAL: no such symbol"
    zeros = jnp.zeros((1, 3, 4), jnp.int32)
    monkeypatch.setattr(HostSearch, "in_program", lambda self, packed: zeros)
    assert "does not pass on its trees" in choice.try_native()


def platform(monkeypatch, name, missing=None):
    """As if this were another platform, where the C++ search cannot be had for a reason."""
    monkeypatch.setattr(jax, "default_backend", lambda: name)
    monkeypatch.setattr(choice, "why_not_native", lambda: missing)
    choice.tell.cache_clear()


def test_what_auto_chooses(ngram, monkeypatch, caplog):
    """With one line where it falls back."""
    caplog.set_level(logging.WARNING)

    def way(choice="auto", memory=10**9, alone=False):
        return way_here(choice, ngram, alone=alone, memory=memory)

    assert way() == ("native" if NATIVE else "callback")
    caplog.clear()
    platform(monkeypatch, "gpu")
    assert (way(), way(memory=1000)) == ("device", "native")
    platform(monkeypatch, "tpu", "XLA cannot call it on tpu")
    assert way() == "device"
    assert not caplog.records
    assert (way(memory=1000), way(memory=1000)) == ("callback", "callback")
    [record] = caplog.records  # told once
    assert "more than the 0 MB of --ngram-device-memory" in record.getMessage()
    assert "\n" not in record.getMessage()
    caplog.clear()
    platform(monkeypatch, "gpu", "the CUDA runtime library was not found")
    assert way() == "device"
    assert not caplog.records
    assert way(memory=1000) == "callback"
    [record] = caplog.records
    assert record.getMessage().endswith("; the CUDA runtime library was not found")
    with pytest.raises(UserError, match="--search native cannot be had: the CUDA runtime"):
        way("native")
    caplog.clear()
    assert way(alone=True) == "callback"
    [record] = caplog.records
    assert "without a drafter is searched on the host; the CUDA runtime" in record.getMessage()
    with pytest.raises(UserError, match="--search device needs a drafter"):
        way("device", alone=True)
    platform(monkeypatch, "gpu")
    assert way(alone=True) == "native"


def test_bad_choices():
    with pytest.raises(UserError, match="one of auto, callback, native, device, got 'gpu'"):
        check_way("gpu", 0)
    with pytest.raises(UserError, match="at least 0, got -1"):
        check_way("device", -1)


@pytest.mark.long
def test_a_table_that_does_not_fit_is_cut_and_told(models, prompts, plain, ngram, caplog):
    config = DecodeConfig(models.target, models.drafter, 8)
    options = {"ngram": ngram, "eos": EOS, "search": SearchConfig()}
    search = make_search(config.host_buffer, 8, **options, way="device", memory=3000)
    [record] = caplog.records
    assert "n-grams are on the device, those seen" in record.getMessage()
    generation = generate(config, models.params, search, prompts, Options(seed=SEED))
    for row, expected in zip(generation.tokens, plain(GREEDY).tokens, strict=True):
        np.testing.assert_array_equal(row, expected)
