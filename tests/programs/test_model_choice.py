"""Which model a program takes: the demo's parts go with the demo's target alone."""

import pytest
import tiny_model

from dart_jax.decoding.drafting import NgramConfig
from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.programs.model_choice import ModelChoice


def test_the_demo_model():
    model = ModelChoice().load()
    assert isinstance(model.drafter, DrafterConfig)
    assert model.ngram is not None
    assert ModelChoice(no_ngram=True).load().ngram is None


def test_another_drafter_for_the_demos_target():
    choice = ModelChoice(drafter=str(DEMO / "eagle3"), no_ngram=True)
    assert isinstance(choice.load().drafter, Eagle3Config)
    with pytest.raises(UserError, match="an n-gram model works with a DART drafter"):
        ModelChoice(drafter=str(DEMO / "eagle3")).load()


def test_another_target_has_only_the_parts_given(tmp_path):
    tiny = tiny_model.make(tmp_path)
    bare = ModelChoice(target=str(tiny.target))
    assert (bare.load().drafter, bare.load().ngram) == (None, None)
    assert bare.part(None, "eagle3") is None
    ngram = ModelChoice(target=str(tiny.target), ngram=str(tiny.ngram)).load()
    assert isinstance(ngram.drafter, NgramConfig)
    drafter = ModelChoice(target=str(tiny.target), drafter=str(tiny.drafter)).load()
    assert isinstance(drafter.drafter, DrafterConfig)
    assert drafter.ngram is None


def test_an_ngram_model_is_taken_or_not():
    with pytest.raises(UserError, match="--no-ngram and --ngram exclude each other"):
        ModelChoice(ngram="x", no_ngram=True)
