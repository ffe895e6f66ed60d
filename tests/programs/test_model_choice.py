"""Models that programs take: a name stands for all parts, a target has only those given."""

import dataclasses

import pytest
import tiny_model

from dart_jax.decoding.drafting import NgramConfig
from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.models.drafter_config import DartConfig, Eagle3Config
from dart_jax.named import models
from dart_jax.programs.model_choice import ModelChoice


def test_another_drafter_for_the_demos_target(demo_drafters):
    choice = ModelChoice(model="demo", drafter=str(demo_drafters["eagle3"]), no_ngram=True)
    assert isinstance(choice.load().drafter, Eagle3Config)
    with pytest.raises(
        UserError, match="an n-gram model works with a DART or block drafter or without one"
    ):
        dataclasses.replace(choice, no_ngram=False).load()


def test_another_target_has_only_the_parts_given(tmp_path):
    tiny = tiny_model.make(tmp_path)
    bare = ModelChoice(target=str(tiny.target))
    assert (bare.load().drafter, bare.load().ngram) == (None, None)
    ngram = ModelChoice(target=str(tiny.target), ngram=str(tiny.ngram)).load()
    assert isinstance(ngram.drafter, NgramConfig)
    drafter = ModelChoice(target=str(tiny.target), drafter=str(tiny.drafter)).load()
    assert isinstance(drafter.drafter, DartConfig)
    assert drafter.ngram is None


def test_the_default_is_decided_once(monkeypatch):
    monkeypatch.setattr(models, "default", lambda: models.MODELS["demo"])
    choice = ModelChoice()
    assert choice.decided() == ModelChoice(model="demo")
    assert (choice.main_drafter, choice.target_path) == (str(DEMO / "drafter"), DEMO / "target")
    named = ModelChoice(target="demo")  # which has no other parts
    assert (named.load().drafter, named.decided()) == (None, named)


def test_a_named_model_without_a_part(monkeypatch, tmp_path):
    (tmp_path / "drafter").mkdir()
    smollm2 = dataclasses.replace(models.MODELS["smollm2"], directory=tmp_path)
    monkeypatch.setitem(models.MODELS, "smollm2", smollm2)
    choice = ModelChoice(model="smollm2")
    assert choice.main_drafter == str(tmp_path / "drafter")
    with pytest.raises(UserError, match=r"ngram\.dng, a part of SmolLM2: this installation lacks"):
        _ = choice.ngram_model
