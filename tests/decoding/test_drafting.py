"""Drafting methods other than a trained drafter: what they propose, and where they are refused."""

import dataclasses
import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SEED
from decoding import Options, generate
from literal_search import paths

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.drafting.prompt_lookup import PromptLookup
from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.shapes import default_tree
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.ngram import NgramModel
from dart_jax.weights.drafter_files import check_fit
from eval.methods.decoding import ImposedTau
from eval.methods.measure import accepted_lengths


def literal_lookup(text: list[int], nodes: int, longest: int, shortest: int) -> list[int]:
    """The tokens after the latest earlier occurrence of the text's last tokens."""
    for n in range(longest, shortest - 1, -1):
        for at in range(len(text) - 1, n - 1, -1):
            if n < len(text) and text[at - n : at] == text[len(text) - n :]:
                return text[at : at + nodes]
    return []


@pytest.mark.parametrize(("longest", "shortest"), [(3, 1), (2, 2), (1, 1), (5, 2)])
def test_prompt_lookup_is_the_literal_one(longest, shortest):
    rng = np.random.default_rng(0)
    drafting = PromptLookup(PromptLookupConfig(longest, shortest), nodes=4)
    look_up = jax.jit(drafting._look_up)
    repeats = 0
    for _ in range(300):
        length = int(rng.integers(1, 24))
        text = rng.integers(0, 3, 24).astype(np.int32)
        tokens, count, _ = look_up(jnp.asarray(text), jnp.int32(length))
        expected = literal_lookup(text[:length].tolist(), 4, longest, shortest)
        assert np.asarray(tokens)[: int(count)].tolist() == expected
        repeats += bool(expected)
    assert 100 < repeats < 300


def literal_paths(ngram, context, levels, eos):
    """Every path of tokens, with the product of their shares among what followed the longest
    context that anything followed."""
    likely = {(): 1.0}
    for path in (open_paths := [()]):
        if len(path) < levels and not (path and path[-1] in eos):
            seen = [x for x in ngram.continuations([*context, *path][-CONTEXT:]) if len(x.token)]
            for one in seen[-1:]:
                for token, count in zip(one.token.tolist(), one.counts.tolist(), strict=True):
                    open_paths.append((*path, token))
                    likely[open_paths[-1]] = likely[path] * count / one.count
    return likely


def test_ngram_trees_are_the_most_likely_paths():
    rng = np.random.default_rng(1)
    # Zipf's law: frequent contexts with many followers, rare ones with one.
    corpus = [np.minimum(rng.zipf(1.3, 60), 40) for _ in range(40)]
    ngram = NgramModel.count(corpus, order=3, vocab_size=50)
    for nodes, levels, eos in ((5, 3, ()), (12, 2, (2,)), (30, 1, ())):
        search = HostSearch(HostBuffer(levels, 0), nodes, ngram=ngram, eos=eos)
        for _ in range(10):
            document = corpus[rng.integers(len(corpus))]
            at = rng.integers(CONTEXT, len(document))
            context = document[at - CONTEXT : at].astype(np.int32)
            [tree] = search(context[None])
            found = [path[1:] for path in paths(tree)]
            likely = literal_paths(ngram, context.tolist(), levels, eos)
            assert len(set(found)) == len(found)
            ours = np.exp(tree[3, : len(found)].view(np.float32))
            np.testing.assert_allclose(ours, [likely[path] for path in found], rtol=1e-5)
            best = sorted(likely.values(), reverse=True)[: nodes + 1]
            np.testing.assert_allclose(ours, best, rtol=1e-5)


def test_one_target_and_many_drafting_methods(tiny):
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)
    for drafter in (None, NgramConfig(), PromptLookupConfig(), tiny.target, tiny.drafter):
        other = model.with_drafter(drafter)
        assert other.params["target"] is model.params["target"]
        assert other.ngram is model.ngram
    assert set(model.with_drafter(None).params) == {"target"}
    with pytest.raises(UserError, match="pass one and use it"):
        model.with_drafter(NgramConfig()).generate(tiny.prompts[0], use_ngram=False)


def test_an_ngram_model_without_drafter_drafts(tiny):
    model = DartModel.from_pretrained(tiny.target, None, tiny.ngram)
    assert model.drafter == NgramConfig()
    drafted = model.generate(tiny.prompts[0], max_new_tokens=8)
    plain = model.generate(tiny.prompts[0], max_new_tokens=8, tree_nodes=0)
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    search = model.engine(EngineConfig(max_length=64, tree_nodes=8)).runner.search
    assert search is not None
    packed = np.zeros((1, search.host_buffer.width), np.int32)
    packed[0, :CONTEXT] = tiny.prompts[0][:CONTEXT]
    assert (search(packed)[0, 2] > 0).any()


def test_default_trees(models, monkeypatch):
    """On an accelerator those of the paper for one sequence, and smaller ones in batches."""

    def sizes(drafter, *batches):
        return [default_tree(drafter, batch)[0] for batch in batches]

    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    for drafter in (None, PromptLookupConfig()):
        assert sizes(drafter, 1, 4, 64) == [8, 2, 1]
    assert sizes(models.target, 1) == [4]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert sizes(models.drafter, 1, 3, 4, 32, 500) == [60, 60, 60, 11, 1]
    assert sizes(models.eagle, 1) == [59]
    assert sizes(PromptLookupConfig(), 32) == [8]


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("tau", [1, 2.5, 3.6])
def test_imposed_acceptance(models, prompts, tau):
    """Whatever is drafted, and whatever the target would accept."""
    config = DecodeConfig(models.target, models.drafter, nodes=8, acceptance=ImposedTau(tau))
    pruner = HostSearch(config.host_buffer, 8)
    generation = generate(config, models.params, pruner, prompts, Options(seed=SEED))
    emitted = np.array([len(tokens) - 1 for tokens in generation.tokens])
    # A step more or less.
    assert (np.abs(generation.steps - emitted / tau) < 1).all()
    for drafted in generation.drafted:
        assert set(accepted_lengths(drafted)[1:]) <= {math.floor(tau) - 1, math.ceil(tau) - 1}


def test_a_draft_model_with_another_tokenizer(tiny, tmp_path):
    """Of the same size; added tokens may differ."""
    drafter = shutil.copytree(tiny.target, tmp_path / "drafter")
    path = drafter / "tokenizer.json"
    json_ = json.loads(path.read_text())
    json_["added_tokens"][0]["content"] = "<other>"
    path.write_text(json.dumps(json_))
    model = DartModel.from_pretrained(tiny.target)
    vocabulary = json_["model"]["vocab"]
    a, b = (token for token, id in vocabulary.items() if id in (150, 151))
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    path.write_text(json.dumps(json_))
    with pytest.raises(UserError, match=r"token 15[01] is .* in the draft model's"):
        model.with_drafter(drafter)
    path.unlink()
    assert model.with_drafter(drafter).drafter is not None


def test_invalid_drafters(models, tiny):
    model = DartModel.from_pretrained(tiny.target)
    for values in ((0, 0), (2, 3), (1, -1)):
        with pytest.raises(UserError, match="1 <= shortest <= longest"):
            PromptLookupConfig(*values)
    with pytest.raises(UserError, match="needs at least 1 level"):
        NgramConfig(0)
    with pytest.raises(UserError, match="no n-gram model was loaded"):
        model.with_drafter(NgramConfig())
    with pytest.raises(UserError, match="pass its directory"):
        model.with_drafter(models.drafter)
    with pytest.raises(UserError, match="nothing drafts"):
        model.with_drafter(None).engine(EngineConfig(max_length=64, tree_nodes=4))
    few = dataclasses.replace(models.target, num_hidden_layers=6)
    with pytest.raises(UserError, match=r"6 layers.* at least 7"):
        check_fit(few, models.drafter)
