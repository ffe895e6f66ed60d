"""`transformers.GenerationConfig`, and the target's own generation_config.json."""

import json
import shutil

import numpy as np
import pytest
import transformers

from dart_jax.errors import InputWarning, UserError
from dart_jax.generation import GenerationConfig, GenerationOptions
from dart_jax.generation.transformers_options import NAMES
from dart_jax.model import DEMO, DartModel

TEXT = "def heappush(heap, item):\n"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"max_new_tokens": 7}, {"do_sample": False, "max_new_tokens": 7}),
        ({"do_sample": True}, {"do_sample": True, "top_k": 50}),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1},
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1},
        ),
        (
            {"repetition_penalty": 1.1, "eos_token_id": [3, 5], "stop_strings": ["a", "b"]},
            {
                "do_sample": False,
                "repetition_penalty": 1.1,
                "eos_token_id": (3, 5),
                "stop": ("a", "b"),
            },
        ),
        ({"max_length": 30}, {"do_sample": False, "max_length": 30, "max_new_tokens": 30}),
        ({"max_length": 30, "max_new_tokens": 9}, {"do_sample": False, "max_new_tokens": 9}),
        ({"output_scores": True, "num_beams": 1}, {"do_sample": False, "output_scores": True}),
        ({"pad_token_id": 0, "use_cache": False, "num_assistant_tokens": 4}, {"do_sample": False}),
    ],
)
def test_options_that_are_honoured(theirs, ours):
    expected = GenerationConfig(**ours)
    assert GenerationConfig.from_transformers(transformers.GenerationConfig(**theirs)) == expected
    assert GenerationConfig.from_transformers(theirs) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 4),
        ("typical_p", 0.9),
        ("bad_words_ids", [[3]]),
        ("output_hidden_states", True),
        ("invented_option", 1),
    ],
)
def test_options_that_cannot_be_honoured_are_named(demo, name, value):
    config = transformers.GenerationConfig(**{name: value})
    for given in (config, {name: value}):
        with pytest.raises(UserError, match=f"generation config has {name}=") as error:
            GenerationConfig.from_transformers(given)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=name):
        demo.generate(TEXT, config)
    with pytest.raises(UserError, match="config must be a dart_jax"):
        demo.generate(TEXT, 3)


def test_every_field_of_transformers_is_known():
    """A new version's fields would otherwise be refused without anybody having looked at them."""
    assert set(transformers.GenerationConfig().to_dict()) <= NAMES


def test_a_config_of_transformers_decodes_like_ours(demo):
    theirs = transformers.GenerationConfig(
        max_new_tokens=12, do_sample=True, temperature=0.8, top_k=9, stop_strings=["return"]
    )
    ours = GenerationConfig(max_new_tokens=12, temperature=0.8, top_k=9, stop="return", seed=4)
    assert demo.generate(TEXT, theirs, seed=4).text == demo.generate(TEXT, ours).text


def test_options_on_top_of_a_config():
    """Keeps what it says about sampling when only the call asks to sample."""
    options = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    config = GenerationConfig.of(transformers.GenerationConfig(**options), {"do_sample": True})
    assert config == GenerationConfig(do_sample=True, **options)
    given = {"eos_token_id": (token for token in (1, 2)), "top_k": np.int8(3), "seed": np.uint32(7)}
    config = GenerationConfig(**given, temperature=np.float32(0.5))
    assert config == GenerationConfig(eos_token_id=(1, 2), top_k=3, seed=7, temperature=0.5)
    assert type(config.top_k) is int


@pytest.mark.long
def test_several_sequences(demo):
    """They are the rows of a batch of equal prompts, next to each other."""
    options = {"max_new_tokens": 12, "do_sample": True, "seed": 1}
    prompts = [TEXT, "x"]
    repeated = demo.generate([TEXT, TEXT, "x", "x"], **options)
    several = demo.generate(prompts, num_return_sequences=2, **options)
    assert [one.text for one in several] == [one.text for one in repeated]
    assert len({one.text for one in several}) == 4
    config = transformers.GenerationConfig(
        max_new_tokens=12, do_sample=True, top_k=0, num_return_sequences=2
    )
    alone = demo.generate(TEXT, config, seed=1)
    assert [one.text for one in alone] == [one.text for one in repeated[:2]]
    assert isinstance(demo.generate(TEXT, num_return_sequences=1, max_new_tokens=2), list)
    with pytest.raises(UserError, match="pass num_return_sequences to generate"):
        GenerationConfig.from_transformers(config)


def test_do_sample(demo):
    options = {"max_new_tokens": 12, "seed": 1}
    greedy = demo.generate(TEXT, **options).text
    sampled = demo.generate(TEXT, temperature=1.0, **options).text
    assert greedy != sampled
    assert demo.generate(TEXT, do_sample=True, **options).text == sampled
    assert demo.generate(TEXT, do_sample=False, temperature=1.0, **options).text == greedy


def test_a_maximum_length(demo):
    prompts = ["x", TEXT]
    lengths = [len(demo.tokenizer.encode(prompt)) for prompt in prompts]
    done = demo.generate(prompts, max_length=16)
    assert [len(one.tokens) for one in done] == [16 - length for length in lengths]


def test_the_targets_own_config(tmp_path):
    target = shutil.copytree(DEMO / "target", tmp_path / "target")
    path = target / "generation_config.json"
    own = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": [0, 7]}
    path.write_text(json.dumps(own | {"transformers_version": "4.51.0", "pad_token_id": 0}))
    model = DartModel.from_pretrained(target)
    expected = GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.95, top_k=50, eos_token_id=(0, 7)
    )
    assert model.generation_config == expected
    path.write_text(json.dumps(own | {"num_beams": 4}))
    with pytest.warns(InputWarning, match="num_beams=4 is not supported, and not used"):
        other = DartModel.from_pretrained(target)
    with pytest.raises(UserError, match="num_beams=4"):
        _ = other.generation_config
    path.unlink()
    assert DartModel.from_pretrained(target).generation_config == GenerationConfig()


def test_options_are_typed_as_the_fields_of_the_config():
    assert set(GenerationOptions.__annotations__) == set(GenerationConfig.__dataclass_fields__)
