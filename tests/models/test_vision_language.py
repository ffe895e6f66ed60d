"""Vision-language models of transformers: their text part is read from the whole checkpoint."""

import json

import jax
import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file
from tiny_configs import prompt_logits
from transformers_models import EXPERTS, SHAPE, TWO_ROPES, randomized, torch

from dart_jax.weights.checkpoint import load_target

VISION = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
# Frequencies of each head that turn by time, height and width.
MROPE = {"rope_theta": 1e4, "mrope_section": [4, 2, 2]}
TOKENS = np.random.default_rng(1).integers(0, 90, (2, 20)).astype(np.int32)
# Name -> the class of transformers, and its configs of text and vision.
MODELS = {
    "Gemma 3": (
        "Gemma3ForConditionalGeneration",
        {"sliding_window": 6, "rope_parameters": TWO_ROPES, "query_pre_attn_scalar": 24},
        {**VISION, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14},
    ),
    "Qwen3-VL": (
        "Qwen3VLForConditionalGeneration",
        {"rope_parameters": {**MROPE, "rope_type": "default", "mrope_interleaved": True}},
        {**QWEN_VISION, "deepstack_visual_indexes": [0], "out_hidden_size": 32},
    ),
    "Qwen2.5-VL": (
        "Qwen2_5_VLForConditionalGeneration",
        {
            "rope_parameters": {**MROPE, "rope_type": "default", "mrope_section": [2, 1, 1]},
            "head_dim": 8,
        },
        {**QWEN_VISION, "out_hidden_size": 32},
    ),
    "Qwen3-VL-MoE": (
        "Qwen3VLMoeForConditionalGeneration",
        {
            **EXPERTS,
            "rope_parameters": {**MROPE, "rope_type": "default", "mrope_interleaved": True},
        },
        {**QWEN_VISION, "deepstack_visual_indexes": [0], "out_hidden_size": 32},
    ),
    "Qwen2-VL": (
        "Qwen2VLForConditionalGeneration",
        {
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]},
            "head_dim": 8,
        },
        {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 32},
    ),
    "Mistral 3": (
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": 7},
        {**VISION, "num_hidden_layers": 1, "model_type": "pixtral", "head_dim": 8},
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def saved(request, tmp_path_factory):
    """A model of transformers, and the directory it wrote."""
    kind, text, vision = MODELS[request.param]
    model_class = getattr(transformers, kind)
    config = model_class.config_class(
        text_config=SHAPE | text, vision_config=vision, tie_word_embeddings=kind[:6] == "Gemma3"
    )
    model = randomized(model_class, config)
    directory = tmp_path_factory.mktemp("saved")
    model.save_pretrained(directory)
    return model, directory


@pytest.mark.long(keep=1)
def test_the_text_part_computes_the_models_logits(saved):
    model, directory = saved
    config, params = load_target(directory)
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS).long()).logits.numpy()
    np.testing.assert_allclose(prompt_logits(config, params, TOKENS), expected, rtol=0, atol=1e-4)


TEXT = ("model.language_model.", "language_model.model.", "model.")


@pytest.mark.long(keep=1)
def test_older_and_newer_names_are_the_same_weights(saved, tmp_path):
    """The text part's tensors have had three prefixes, and Qwen's configs no `text_config`."""
    _, directory = saved
    config, params = load_target(directory)
    tensors = load_file(directory / "model.safetensors")
    stored = json.loads((directory / "config.json").read_text())
    prefix = next(start for start in TEXT if f"{start}norm.weight" in tensors)
    for number, other in enumerate(TEXT):
        made = tmp_path / str(number)
        made.mkdir()
        renamed = {name.replace(prefix, other, 1): tensor for name, tensor in tensors.items()}
        assert f"{other}norm.weight" in renamed
        written = stored
        if other == "model." and stored["model_type"].startswith("qwen2"):
            written = {**stored["text_config"], "model_type": stored["model_type"]}
        save_file(renamed, made / "model.safetensors")
        (made / "config.json").write_text(json.dumps(written))
        again, same = load_target(made)
        assert again == config
        jax.tree.map(np.testing.assert_array_equal, same, params)


def test_experts_that_are_stored_by_input_are_transposed(tmp_path):
    """As on the hub; transformers itself writes them by output."""
    kind, text, vision = MODELS["Qwen3-VL-MoE"]
    model_class = getattr(transformers, kind)
    config = model_class.config_class(text_config=SHAPE | text, vision_config=vision)
    randomized(model_class, config).save_pretrained(tmp_path)
    expected = load_target(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    experts = [name for name in tensors if ".mlp.experts." in name]
    assert len(experts) == 2 * 7
    for name in experts:
        tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(1, 2))
    save_file(tensors, tmp_path / "model.safetensors")
    transposed = load_target(tmp_path)
    assert transposed[0] == expected[0]
    jax.tree.map(np.testing.assert_array_equal, transposed[1], expected[1])
