"""Log-probabilities, scores and logits processors, with and without drafts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_model
from needs import judge

from dart_jax.decoding.compilation import measure_compilation
from dart_jax.decoding.logits import token_scores
from dart_jax.decoding.options import LogitsConfig, Sampling
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from tests.support.draws import draw_at

PROMPTS = ["def heappush(heap, item):\n", "import os\n"]
SAMPLED = {"temperature": 0.7, "top_k": 12, "repetition_penalty": 1.2, "seed": 3}


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_change_no_logprob(demo, options):
    options = options | {"max_new_tokens": 20, "logprobs": 4}
    drafted = demo.generate(PROMPTS, **options)
    plain = demo.generate(PROMPTS, tree_nodes=0, **options)
    assert max(one.tau for one in drafted) > 1.2
    for ours, theirs in zip(drafted, plain, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.logprobs.shape == (20,)
        assert ours.top_ids.shape == ours.top_logprobs.shape == (20, 4)
        close(ours.logprobs, theirs.logprobs)
        close(ours.top_logprobs, theirs.top_logprobs)
        assert (np.diff(ours.top_logprobs) <= 0).all()
        if not options.get("temperature"):
            close(ours.logprobs, ours.top_logprobs[:, 0])
            assert ours.top_ids[:, 0].tolist() == ours.tokens.tolist()


@pytest.mark.long
def test_scores_are_what_tokens_are_drawn_from(demo):
    options = {"max_new_tokens": 12, "output_scores": True}
    greedy = demo.generate(PROMPTS[0], logprobs=0, **options)
    assert greedy.scores.shape == (12, demo.target.vocab_size)
    assert np.argmax(greedy.scores, axis=1).tolist() == greedy.tokens.tolist()
    logprobs = np.asarray(jax.nn.log_softmax(greedy.scores))
    close(logprobs[np.arange(12), greedy.tokens], greedy.logprobs)
    drafted, plain = (
        demo.generate(PROMPTS[0], tree_nodes=nodes, **SAMPLED, **options) for nodes in (8, 0)
    )
    assert (np.isfinite(drafted.scores).sum(axis=1) == 12).all()  # top_k
    assert np.isfinite(drafted.scores[np.arange(12), drafted.tokens]).all()
    close(drafted.scores, plain.scores)


@pytest.mark.parametrize("temperature", [1e-40, 1e-6, 0.7])
def test_the_drawn_token_has_a_finite_score(temperature):
    """At any temperature: scores are cut off where they would overflow."""
    logits = np.array([[[9, 3, 1], [1, -1e-9, -2e-9], [5, -np.inf, -1e30]]], np.float32)
    sampling = Sampling(temperature, top_k=2).values()
    zero = jnp.zeros((1, 3), jnp.int32)
    tokens = draw_at(sampling, jnp.asarray(logits), jnp.uint32(0), zero, zero)
    reported = token_scores(
        LogitsConfig(scores=True), sampling, logits, jnp.asarray(logits), tokens
    )
    assert reported is not None
    scores = np.asarray(reported.scores)
    assert not np.isnan(scores).any()
    assert np.isfinite(np.take_along_axis(scores, np.asarray(tokens)[..., None], axis=-1)).all()


def chain(tokens, logits, length):
    """The next token is a hash of the last two and of their place."""
    last, before = tokens[length - 1], tokens[length - 2]
    token = (31 * last + 7 * before + length) % logits.shape[0]
    return jnp.where(jnp.arange(logits.shape[0]) == token, 0.0, -jnp.inf)


def test_a_processor_sees_the_sequence(demo):
    """The text it makes the target write is computed here, token by token, in another way."""
    prompt = demo.tokenizer.encode(PROMPTS[0])
    for options in ({"tree_nodes": 0}, {"tree_nodes": 8, "stop": "no such text"}):
        written = list(prompt)
        completion = demo.generate(PROMPTS[0], max_new_tokens=12, logits_processor=chain, **options)
        for token in completion.tokens.tolist():
            assert token == (31 * written[-1] + 7 * written[-2] + len(written)) % 4096
            written.append(token)
        assert len(written) == len(prompt) + 12


def no_repeats(tokens, logits, length):
    """Forbids the tokens of the last 8 places."""
    recent = jnp.where(
        (jnp.arange(tokens.shape[0]) >= length - 8) & (tokens >= 0), tokens, logits.shape[0]
    )
    return logits.at[recent].set(-jnp.inf, mode="drop")


def even_at_first(tokens, logits, length):
    """Forbids odd ids where a text is short."""
    odd = jnp.arange(logits.shape[0]) % 2 == 1
    return jnp.where(odd & (length < 20), -jnp.inf, logits)


@pytest.mark.long
def test_processed_drafts_change_nothing(demo):
    """Drafts are accepted in spite of processors, which are applied in turn and see every node's
    own path."""
    options = SAMPLED | {"max_new_tokens": 24, "logits_processor": [even_at_first, no_repeats]}
    drafted = demo.generate(PROMPTS, **options)
    plain = demo.generate(PROMPTS, tree_nodes=0, **options)
    assert max(one.tau for one in drafted) > 1.1
    for prompt, ours, theirs in zip(PROMPTS, drafted, plain, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        before = demo.tokenizer.encode(prompt)
        written = [*before, *ours.tokens.tolist()]
        assert all(token % 2 == 0 for token in written[len(before) : 20])
        for at in range(len(before), len(written)):
            assert written[at] not in written[max(at - 8, 0) : at]


def not_numbers(tokens, logits, length):
    """NaN from the sixth new token on."""
    return jnp.where(length >= 6, jnp.nan, logits)


def test_nan_is_reported_and_not_written_as_text(demo):
    prompt = [5, 6]  # so that new token 5 is the first with a sequence of 6 tokens
    with pytest.raises(UserError, match="logits are NaN at new token 5 of a text"):
        demo.generate(prompt, max_new_tokens=20, logits_processor=not_numbers)


def test_compilation_is_told_apart(demo):
    prompt, options = "x = [", {"max_new_tokens": 5, "logits_processor": lambda t, x, n: x}
    first, second = (demo.generate(prompt, **options) for _ in range(2))
    assert first.seconds["compile"] > 0 == second.seconds["compile"]
    assert min(*first.seconds.values(), first.tokens_per_second) >= 0


def test_nested_compilation_is_counted_once():
    inner = jax.jit(lambda x: jnp.sin(x) @ x)

    @jax.jit
    def outer(x):
        for _ in range(30):
            x = inner(x) + jax.jit(lambda y: inner(y) * 2)(x)
        return x

    x = jnp.ones((9, 9))
    with measure_compilation() as whole:
        with measure_compilation() as part:
            outer(x).block_until_ready()
        assert part.seconds > 0
    assert whole.seconds == part.seconds
    spans = part._spans
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


@pytest.mark.long
def test_scores_are_those_of_transformers(tmp_path_factory):
    torch = judge("torch")
    from transformers import AutoModelForCausalLM

    tiny = tiny_model.make(tmp_path_factory.getbasetemp())
    ours = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)
    theirs = AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float32)
    prompt = tiny.prompts[0]
    options = {"max_new_tokens": 10, "repetition_penalty": 1.3}
    with torch.no_grad():
        want = theirs.generate(
            torch.from_numpy(prompt[None].astype(np.int64)),
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **options,
        )
    have = ours.generate(prompt, output_scores=True, logprobs=5, **options)
    assert have.tokens.tolist() == want.sequences[0, len(prompt) :].tolist()
    close(have.scores, torch.cat(want.scores).numpy())
    logprobs, ids = torch.log_softmax(torch.cat(want.logits), -1).topk(5)
    close(have.top_logprobs, logprobs.numpy())
    assert have.top_ids.tolist() == ids.tolist()
