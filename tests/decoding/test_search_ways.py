"""Every way of searching gives the same tokens, in the same steps."""

import logging
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import SEED, sequences
from decoding import Options, generate

from dart_jax.decoding.drafting import NgramConfig
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.search.choice import check_way, make_search, tell, way_here
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.config import EngineConfig
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.ngram import NgramModel

GREEDY, SAMPLED = Sampling(), Sampling(0.9, top_k=30)


@pytest.fixture(scope="module")
def ngram(models, prompts, plain):
    """N-grams of the texts that the target writes, so that much is accepted."""
    texts = [row for how in (GREEDY, SAMPLED) for row in sequences(prompts, plain(how).tokens)]
    return NgramModel.count(texts, order=4, vocab_size=models.target.vocab_size)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(("sampling", "nodes"), [(GREEDY, 12), (SAMPLED, 5)])
@pytest.mark.parametrize("method", ["DART", "DART with pair scores", "n-grams only"])
def test_tokens_and_steps_are_the_same(
    models, scored, prompts, plain, ngram, method, sampling, nodes
):
    """As XLA calls the host's, through Python, and on the device."""
    drafter, params = scored if "pair" in method else (models.drafter, models.params)
    if method == "n-grams only":
        drafter, params = NgramConfig(), {"target": models.params["target"]}
    config = DecodeConfig(models.target, drafter, nodes)
    options = {"ngram": ngram, "eos": (511,), "search": SearchConfig()}
    searches = [HostSearch(config.host_buffer, nodes, native=x, **options) for x in (None, False)]
    if config.host_buffer.candidates:
        searches.append(make_search(config.host_buffer, nodes, way="device", **options))
    steps = []
    for search in searches:
        generation = generate(config, params, search, prompts, Options(sampling, seed=SEED))
        for row, expected in zip(generation.tokens, plain(sampling).tokens, strict=True):
            np.testing.assert_array_equal(row, expected)
        steps.append(generation.steps)
    np.testing.assert_array_equal(steps, np.broadcast_to(steps[0], np.shape(steps)))
    share = 0.8 if drafter == NgramConfig() else 1  # the others' weights are random
    assert steps[0].sum() < share * plain(sampling).steps.sum()


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
@pytest.mark.parametrize("way", ["host", "device"])
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


@pytest.mark.parametrize(("way", "kind"), [("host", HostSearch), ("device", DeviceSearch)])
def test_a_model_searches_where_it_is_told(tiny, way, kind):
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram, search=way)
    engine = model.engine(EngineConfig(max_length=64, tree_nodes=6))
    assert isinstance(engine.runner.search, kind)


def test_what_auto_chooses(ngram, monkeypatch, caplog):
    """With one line, once, where it falls back."""
    caplog.set_level(logging.WARNING)

    def way(choice="auto", memory=10**9, alone=False):
        return way_here(choice, ngram, alone=alone, memory=memory)

    assert way() == "host"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    tell.cache_clear()
    assert (way(), way("host"), caplog.messages) == ("device", "host", [])
    assert (way(memory=1000), way(memory=1000), way(alone=True)) == 3 * ("host",)
    for message, reason in zip(
        caplog.messages, ("more than the 0 MB of", "without a drafter"), strict=True
    ):
        assert reason in message
        assert "\n" not in message
    for options in ({"memory": 1000}, {"alone": True}):
        with pytest.raises(UserError, match=r"--search device cannot be: .* n-gram model"):
            way("device", **options)


def test_bad_choices():
    with pytest.raises(UserError, match="one of auto, host, device, got 'gpu'"):
        check_way("gpu", 0)
    with pytest.raises(UserError, match="at least 0, got -1"):
        check_way("device", -1)
