"""What texts draft from: themselves, and others only where they are asked to; and how far they are
trusted."""

import numpy as np
import pytest

from dart_jax import DartModel
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Request
from dart_jax.engine.texts import SharedTexts, TextTrust

SECRET = np.arange(250, 270, dtype=np.int32)


@pytest.fixture(scope="module")
def model(tiny):
    return DartModel.from_pretrained(tiny.target)


def run(engine, *requests):
    """The drafted tokens of each request, step by step, and its tokens up to them."""
    sequences = [engine.add(request) for request in requests]
    written = {each: each.tokens.copy() for each in sequences}
    seen = {each: [] for each in sequences}
    while engine.busy:
        for sequence, output in engine.step():
            if output.draft is not None:
                tokens = output.draft.tree[0][output.draft.tree[2] > 0]
                seen[sequence].append((set(tokens.tolist()), set(written[sequence].tolist())))
            written[sequence] = np.concatenate([written[sequence], output.tokens])
    return [seen[each] for each in sequences]


def request(tokens, group=None):
    return Request(np.asarray(tokens, np.int32), 24, drafts=True, draft_group=group)


def test_texts_draft_from_themselves_alone(model):
    """Beside a text that goes on with what they end with, and after it, in its slot."""
    options = EngineConfig(slots=3, max_length=96, page=16, tree_nodes=8, warmup="none")
    engine = model.engine(options)
    curious = [request([*range(n, n + 30), *SECRET[:10]]) for n in range(5)]
    drafted = run(engine, request([*SECRET, *SECRET]), *curious, request(np.tile(SECRET, 2)))
    for steps in drafted:
        assert all(tokens <= own for tokens, own in steps)
    assert any(tokens & set(SECRET.tolist()) for tokens, _ in drafted[0])
    assert sum(len(tokens) for steps in drafted[1:-1] for tokens, _ in steps) > 10


def test_a_group_drafts_together(model):
    options = EngineConfig(slots=1, max_length=256, page=16, tree_nodes=8, warmup="none")
    engine = model.engine(options)
    begins = [*range(30), *SECRET[:10]]
    run(engine, request(SECRET, "ours"))
    others, ours = (run(engine, request(begins, group))[0][:1] for group in ("theirs", "ours"))
    rest = set(SECRET[10:].tolist())
    assert not any(tokens & rest for tokens, _ in others)
    assert all(tokens & rest for tokens, _ in ours)
    assert ours


def test_a_text_without_a_limit_has_a_group(model):
    """As of clients that name no maximum: what is written takes the room of the group's texts."""
    options = EngineConfig(slots=1, max_length=128, page=16, tree_nodes=8, warmup="none")
    begins = np.array([*range(30), *SECRET[:10]], np.int32)
    unlimited = {"max_new_tokens": 128 - len(begins), "drafts": True}
    engine = model.engine(options)
    run(engine, request([*range(100, 160), *SECRET], "ours"))
    [steps] = run(engine, Request(begins, draft_group="ours", **unlimited))
    assert steps[0][0] & set(SECRET[10:].tolist())
    [alone] = model.engine(options).run([Request(begins, **unlimited)])
    [shared] = engine.run([Request(begins, draft_group="ours", **unlimited)])
    np.testing.assert_array_equal(alone.tokens, shared.tokens)
    assert len(shared.tokens) == 128 - len(begins)


def test_groups_keep_their_newest_tokens():
    texts = SharedTexts()
    for number in range(100):
        texts.add(f"group {number % 70}", np.arange(1000, dtype=np.int32))
    assert texts.of(None) is texts.of("group") is texts.of("group 30") is None
    np.testing.assert_array_equal(texts.of("group 69"), [-1, *range(1000)])
    for _ in range(30):
        texts.add("long", np.arange(1000, dtype=np.int32))
    assert len(texts.of("long")) == 16_384


def test_trust_is_learned():
    """Where a text repeats itself it is right; soon after, what it repeats no longer counts."""
    trust, before = TextTrust(), TextTrust().values
    assert (np.diff(before) > 0).all()
    trust.learn(np.tile(np.arange(40, dtype=np.int32), 100), 40)
    assert trust.values[-1] > before[-1]
    noise = np.random.default_rng(0).integers(0, 500, 6000).astype(np.int32)
    trust.learn(noise, 40)
    assert trust.values[0] < before[0]
    assert abs(trust.values[-1] - before[-1]) < 0.02
