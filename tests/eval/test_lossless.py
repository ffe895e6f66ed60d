"""eval.lossless passes lossless decoding and catches errors."""

import dataclasses
import io
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_model
from rich.console import Console

from dart_jax.decoding import step as step_module
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.sampling import Noise, draw, gumbel_noise
from dart_jax.decoding.step import accept
from dart_jax.model import DartModel
from dart_jax.models.attention.compaction import append
from dart_jax.models.networks.pure import init_params
from dart_jax.ngram import NgramModel
from dart_jax.weights.checkpoint import save_drafter, save_target
from eval.lossless.__main__ import main
from eval.lossless.program import LosslessConfig, run
from eval.methods.decoding import Decoder

# Settings that compile few programs.
QUICK = {"temperature": (0.0, 0.7), "tree_nodes": (8,)}

# Tokens that both target and drafter prefer: otherwise random models hardly ever agree.
LIKELY = slice(40, 48)
TARGET = dataclasses.replace(tiny_model.SHAPES.target, tie_word_embeddings=False)


def sharpen(kernel):
    """A head [D, V] whose logits for likely tokens spread 30 times as far."""
    return kernel.at[:, LIKELY].multiply(30.0)


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """The tiny model, whose drafter prefers the same tokens; its n-gram model is counted on the
    target's own output."""
    tiny = tiny_model.make(tmp_path_factory.getbasetemp())
    directory = tmp_path_factory.mktemp("pair")
    drafter = init_params(tiny_model.SHAPES.drafter, 1)
    [head] = [name for name in drafter if "head" in name]
    drafter[head]["kernel"] = sharpen(drafter[head]["kernel"])
    ids = np.arange(tiny_model.SHAPES.vocab_size)
    save_drafter(directory / "drafter", tiny_model.SHAPES.drafter, drafter, ids)
    target = init_params(TARGET, 0)
    target["lm_head"]["kernel"] = sharpen(target["lm_head"]["kernel"])
    save_target(directory / "target", TARGET, target, eos=(0,))
    shutil.copy(tiny.target / "tokenizer.json", directory / "target")
    model = DartModel.from_pretrained(directory / "target")
    decode = Decoder(model, 200, Sampling(0.7), (), 0)
    NgramModel.count(decode(tiny.prompts, 150).tokens).save(directory / "ngram")
    return {name: str(directory / name) for name in ("target", "drafter", "ngram")}


@pytest.fixture(scope="session")
def check(pair, tmp_path_factory):
    """Returns a function that runs the program: whether it passed, its output, and its JSON."""

    def check(**settings):
        path = tmp_path_factory.mktemp("report") / "report.json"
        quick = {"prompts": 1, "max_new_tokens": 16, "batch_size": (4,), "samples": 0}
        config = LosslessConfig(**{**pair, **quick, "json": path, **settings})
        file = io.StringIO()
        passed = run(config, Console(file=file, width=140))
        return passed, file.getvalue(), json.loads(path.read_text())

    return check


@pytest.fixture
def broken(monkeypatch):
    """Replaces a function of the step, in programs compiled from here to the test's end."""

    def replace(name, function):
        monkeypatch.setattr(step_module, name, function)

    jax.clear_caches()
    yield replace
    jax.clear_caches()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_product(check, monkeypatch):
    """Batches, temperatures, filters and tree sizes all give plain decoding's output."""
    # A random drafter is hardly right at depth: use broad trees.
    monkeypatch.setattr("eval.lossless.program.LEVEL_DECAY", 0.7)
    options = {"tree_nodes": (1, 60, 0), "batch_size": (1, 8), "temperature": (0.0, 0.7)}
    options |= {"prompts": 2, "top_k": 4, "max_new_tokens": 32, "samples": 2048}
    passed, text, content = check(**options)
    settings = content["settings"]
    assert passed
    assert content["lossless"]
    names = ("temperature", "top_k", "batch_size", "nodes")
    rows = [tuple((s | s["sampling"])[name] for name in names) for s in settings]
    samplings = [(0.0, 0), (0.7, 0), (0.7, 4)]
    expected = itertools.product(samplings, (1, 8), (1, 60, 0))
    assert rows == [(*sampling, *rest) for sampling, *rest in expected]
    assert {s["prompts"] for s in settings} == {8}
    tokens = sum(s["tokens"] for s in settings)
    assert f"\nLossless: {tokens:,} tokens in 18 settings; 0 divergences" in text
    for fit in content["distribution"]:
        assert min(fit["positions"], fit["drafted"]) > 0
    # The filters may leave one token everywhere.
    assert content["distribution"][0]["dof"] > 0
    assert "the target's distribution (smallest p" in text
    # Drafts are accepted.
    assert max(s["tau"] for s in settings if s["sampling"]["temperature"]) > 1.4


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_method(check, pair, dtype):
    """With a penalty and min-p, in 16 bits, where outputs differ by ties. The draft model is the
    target itself, so it is always right."""
    every = {"method": "all", "draft_model": pair["target"], "top_k": 0, "top_p": 1.0}
    every["dtype"] = dtype
    passed, text, content = check(**every, **QUICK, repetition_penalty=1.3, min_p=0.1)
    assert passed
    methods = {s["method"]: s["nodes"] for s in content["settings"]}
    searched = dict.fromkeys(("text", "dart", "dart_alone", "dart_no_ngram", "pld", "ngram"), 8)
    assert methods == {**searched, "sps": 6}
    assert min(s["tau"] for s in content["settings"] if s["method"] == "sps") > 3
    assert "left out: eagle3" in text
    for title in ("DART", "DART, no n-gram", "draft model", "prompt lookup", "n-gram only"):
        assert f"{title} against plain decoding: trees of" in text
    for name in ("T 0 rep 1.3", "T 0.7 rep 1.3", "T 0.7 min 0.1 rep 1.3"):
        assert name in text


@pytest.mark.long
@pytest.mark.parametrize("mistake", ["acceptance", "orphans", "cache"])
def test_a_mistake_of_the_step_diverges(broken, pair, mistake, tmp_path, capfd):
    """The root's first child is accepted, whatever the target sampled; nodes attend only to the
    root and themselves; or the root's rows are cached for all nodes."""

    def lenient(tree, mask, drawn, max_depth):
        if tree.tokens.shape[1] > 1:
            first = jnp.where(tree.real[:, 1], tree.tokens[:, 1], drawn[:, 0])
            drawn = drawn.at[:, 0].set(first)
        return accept(tree, mask, drawn, max_depth)

    def orphans(tree, depth):
        nodes = tree.parents.shape[1]
        mask = jnp.eye(nodes, dtype=bool).at[:, 0].set(True)
        return jnp.broadcast_to(mask, (*tree.parents.shape, nodes))

    wrong = {"acceptance": ("accept", lenient), "orphans": ("ancestor_mask", orphans)}
    wrong["cache"] = "append", lambda cache, rows, index, *a: append(cache, rows, index * 0, *a)
    broken(*wrong[mistake])
    path = tmp_path / "report.json"
    words = "--temperature 1 --tree-nodes 32 --top-k 0 --top-p 1 --batch-size 4 --prompts 2"
    parts = [f"--{name}={value}" for name, value in pair.items()]
    with pytest.raises(SystemExit) as exit:
        main([*parts, *words.split(), *("--samples=0", "--max-new-tokens=60", f"--json={path}")])
    assert exit.value.code == 1
    [setting] = json.loads(path.read_text())["settings"]
    assert not all(each["tie"] for each in setting["divergences"])
    text = capfd.readouterr().out
    assert "DIVERGES" in text
    assert "\nNOT LOSSLESS: " in text


@pytest.mark.long
def test_ties_are_called_ties(check, broken, pair, tmp_path):
    """Some tokens have equal logits; when trees are verified, the other one is sampled."""
    target = init_params(TARGET, 0)
    kernel = sharpen(target["lm_head"]["kernel"])
    target["lm_head"]["kernel"] = kernel.at[:, 44:48].set(kernel[:, 40:44])
    save_target(tmp_path, TARGET, target, eos=(0,))
    shutil.copy(f"{pair['target']}/tokenizer.json", tmp_path)

    def last(sampling, logits, noise, levels, vocabulary):
        if levels.shape[1] == 1:
            return draw(sampling, logits, noise, levels)
        return (logits.shape[2] - 1 - jnp.argmax(logits[:, :, ::-1], axis=2)).astype(jnp.int32)

    broken("draw", last)
    settings = {"temperature": (0.0,), "tree_nodes": (8,)}
    passed, text, content = check(target=str(tmp_path), **settings)
    [setting] = content["settings"]
    assert setting["divergences"]
    for each in setting["divergences"]:
        assert abs(each["plain"] - each["dart"]) == 4
        assert each["margin"] == 0
    assert passed
    assert "tie" in text


@pytest.mark.long
@pytest.mark.parametrize("mistake", ["temperature", "noise"])
def test_a_mistake_that_plain_decoding_shares(check, broken, mistake):
    """The outputs are equal; the distribution is wrong."""

    def hotter(sampling, logits, noise, levels, vocabulary):
        return draw(sampling, logits * 1.25, noise, levels)

    def repeated(sampling, keys, first, count, vocab, core):
        position = first[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        return Noise(keys, first, gumbel_noise(keys, position // 2 * 2, vocab))

    broken(*(("draw", hotter) if mistake == "temperature" else ("noise_at", repeated)))
    settings = {"temperature": (1.5,), "tree_nodes": (8,), "top_k": 0}
    passed, text, content = check(top_p=1.0, samples=2048, **settings)
    assert not passed
    assert not any(setting["divergences"] for setting in content["settings"])
    assert content["distribution"][0]["p"] < 1e-4
    assert "wrong distribution at T 1.5" in text
