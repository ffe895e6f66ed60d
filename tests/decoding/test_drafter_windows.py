"""Drafters that see a window of their cache, chosen as they are loaded: the text is the same."""

import dataclasses

import numpy as np
import pytest

from dart_jax.decoding.drafting import PromptLookupConfig
from dart_jax.errors import UserError
from dart_jax.model import DEMO, DartModel
from dart_jax.models.drafter_config import BlockConfig
from dart_jax.programs.model_choice import ModelChoice

PROMPTS = [
    "def mean(values):\n    ",
    "class Stack:\n    def __init__(self):\n        self.items = []",
]


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", ["drafter", "eagle3", "block"])
def test_texts_are_the_targets_own(demo, demo_drafters, name):
    """With windows shorter and longer than the texts; the latter draft as if there were none."""
    plain = demo.generate(PROMPTS, max_new_tokens=24, tree_nodes=0)
    steps = {}
    for window in (0, 2, 4096):
        model = demo.with_drafter(demo_drafters[name], drafter_window=window)
        assert model.drafter.sliding_window == (window or None)
        made = model.generate(PROMPTS, max_new_tokens=24, tree_nodes=8)
        for one, other in zip(made, plain, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
        steps[window] = [one.drafted.tolist() for one in made]
    assert steps[4096] == steps[0]
    if name != "block":  # which is random, and never right
        assert steps[2] != steps[0]


def test_block_drafters_have_it_in_all_layers(demo, demo_drafters):
    own = demo.with_drafter(demo_drafters["block"]).drafter
    narrow = demo.with_drafter(demo_drafters["block"], drafter_window=9).drafter
    assert isinstance(narrow, BlockConfig)
    layers = range(narrow.num_hidden_layers)
    assert [narrow.decoder.window(i) for i in layers] == 2 * [9]
    assert narrow.with_window(None) == own
    assert narrow.kind == own.kind
    jetspec = dataclasses.replace(
        own, shifted=False, pair_rank=0, confidence=None, causal_layers=(0, 1), layout="dflash"
    )
    assert jetspec.kind == jetspec.with_window(9).kind == "JetSpec"
    assert BlockConfig.from_json(dataclasses.replace(
        jetspec.with_window(9), draft_vocab_size=own.vocab_size, own_head=False
    ).to_json()).sliding_layers == (0, 1)  # fmt: skip
    with pytest.raises(UserError, match="windows speculators counts in another way"):
        narrow.to_json()


def test_the_option_of_programs():
    choice = ModelChoice(model="demo", drafter_window=32)
    assert choice.words() == ["--model", "demo", "--drafter-window", "32"]
    assert choice.load().drafter.sliding_window == 32
    assert ModelChoice(model="demo", drafter_window=0).load().drafter.sliding_window is None


def test_windows_that_nothing_has(demo, tiny):
    none = "a window is that of a DART, EAGLE-3 or block drafter; pass one, or leave the window out"
    with pytest.raises(UserError, match=none):
        DartModel.from_pretrained(tiny.target, ngram=tiny.ngram, drafter_window=8)
    for drafter in (DEMO / "target", PromptLookupConfig(), None):
        with pytest.raises(UserError, match=none):
            demo.with_drafter(drafter, drafter_window=8)
    with pytest.raises(UserError, match="or 0 for none, got -1"):
        demo.with_drafter(DEMO / "drafter", drafter_window=-1)
