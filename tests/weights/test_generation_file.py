"""What ends a target's texts, as its files say."""

import json

import pytest

from dart_jax.errors import InputWarning, UserError
from dart_jax.weights.generation_file import load_eos


@pytest.mark.parametrize(
    ("generation", "config", "eos"),
    [
        ({"eos_token_id": [3, 5]}, {"eos_token_id": 7}, (3, 5)),
        ({"temperature": 0.5}, {"eos_token_id": 7}, (7,)),
        (None, {"text_config": {"eos_token_id": [7, 8]}}, (7, 8)),
        (None, {"eos_token_id": 9, "text_config": {"eos_token_id": 7}}, (9,)),
        ({"eos_token_id": None}, {}, ()),
    ],
)
def test_ids_that_end_a_text(tmp_path, generation, config, eos):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert load_eos(tmp_path, 10) == eos


def test_ids_that_end_a_text_but_cannot_be_written(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 10, -1]}')
    with pytest.warns(InputWarning, match="the target cannot write eos_token_id 10, -1"):
        assert load_eos(tmp_path, 10) == (3,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [true]}')
    with pytest.raises(UserError, match="eos_token_id must be an integer or a list of them"):
        load_eos(tmp_path)
