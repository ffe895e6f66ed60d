"""Block drafters compute and draft what their authors' modules do, step by step, with a cache."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from dart_jax.decoding.drafting.base import DraftInput, PromptRows
from dart_jax.decoding.drafting.block import Block
from dart_jax.decoding.sampling import SamplingValues
from dart_jax.models.config import TargetConfig
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.pure import bind, init_params
from dart_jax.weights.checkpoint import load_drafter, read_any_drafter_config, save_drafter

GOLDENS = Path(__file__).parents[1] / "weights/block_drafters"
NAMES = sorted(path.name for path in GOLDENS.iterdir() if path.is_dir())
STEPS = 5


@pytest.fixture(params=NAMES)
def files(request):
    return GOLDENS / request.param


class Run:
    """A drafter, its target's embedding and head, and what its authors' code printed."""

    def __init__(self, files):
        self.outputs = load_file(files / "outputs.safetensors")
        embed = jnp.asarray(self.outputs["embed"])
        self.config, drafter, self.ids = load_drafter(files, embedding=embed)
        target = TargetConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=9,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        )
        params = init_params(target, 0)
        params |= {"embed_tokens": embed, "lm_head": {"kernel": self.outputs["head"].T}}
        self.params = {"target": params, "drafter": drafter, "draft_ids": jnp.asarray(self.ids)}
        self.target = bind(target, params)

    def steps(self):
        """Yields the authors' outputs of each step with the new rows, and those before it."""
        for step in range(STEPS):
            outputs = {
                name: self.outputs[f"{name}_{step}"]
                for name in ("logits", "hidden", "chain", "start", "rows", "confidence")
                if f"{name}_{step}" in self.outputs
            }
            yield outputs, int(outputs["start"]), int(outputs["rows"])

    def rows(self, start, rows, padding=0):
        """Arguments for rows of the context, with rows of padding after them."""
        index = np.minimum(np.arange(start, start + rows + padding), start + rows - 1)
        return {
            "target": self.target,
            "params": self.params,
            "tokens": jnp.asarray(self.outputs["tokens"][index])[None],
            "next_tokens": jnp.asarray(self.outputs["tokens"][index + 1])[None],
            "features": jnp.asarray(self.outputs["features"][index])[None],
            "positions": jnp.arange(start, start + rows + padding, dtype=jnp.int32)[None],
            "start": jnp.array([start], jnp.int32),
        }


def test_logits_and_chains_are_the_authors(files):
    run = Run(files)
    assert read_any_drafter_config(files) is not None
    method = Block(run.config, nodes=run.config.num_positions, max_candidates=1)
    cache = method.empty(1, 64, jnp.float32, LayerOptions())
    drafted = []

    for outputs, start, rows in run.steps():
        if start == 0:  # the prompt is read without drafting, and its last row once more
            cache = method.read(cache, PromptRows(**run.rows(0, rows), filled=0))
            start, rows = rows - 1, 1
        inputs = DraftInput(
            **run.rows(start, rows, padding=2),
            last=jnp.array([rows - 1]),
            sampling=SamplingValues(),
            seen=None,
            noise=None,
        )
        cache, proposal = method(cache, inputs)
        drafted.append(np.asarray(proposal.candidates.ids)[0, :, 0])
        drafter = bind(run.config, run.params["drafter"])
        root = inputs.next_tokens[:, rows - 1 : rows]
        normed = method._run(drafter, inputs, root, cache, inputs.start + rows)
        logits = drafter.logits(normed, run.target.logits)
        np.testing.assert_allclose(normed[0], outputs["hidden"], atol=1e-4)
        np.testing.assert_allclose(logits[0], outputs["logits"], atol=1e-4)
        np.testing.assert_array_equal(drafted[-1], outputs["chain"])
        if run.config.confidence is not None:
            before = jnp.concatenate([root[0], jnp.asarray(outputs["chain"][:-1])])
            first = drafter.pairs.first_factors(before)
            confidence = drafter.confidence(normed[0], first)
            np.testing.assert_allclose(confidence, outputs["confidence"], atol=1e-4)
    assert len({tuple(chain) for chain in drafted}) > 1


def test_files_are_written_in_their_own_layout(files, tmp_path):
    run = Run(files)
    copies = {}
    if run.config.layout == "deepspec":
        head = jnp.asarray(load_file(files / "model.safetensors")["lm_head.weight"]).T
        copies = {"embedding": run.params["target"]["embed_tokens"], "head": head}
    save_drafter(tmp_path, run.config, run.params["drafter"], run.ids, **copies)
    again = load_drafter(tmp_path, embedding=run.params["target"]["embed_tokens"])
    assert again[0] == run.config
    before, after = (load_file(path / "model.safetensors") for path in (files, tmp_path))
    named = {*before} - {"t2d", "d2t", "verifier_lm_head.weight", "verifier_norm.weight"}
    assert named <= {*after} | {"embed_tokens.weight"}
    for name in named & {*after}:
        np.testing.assert_array_equal(before[name], after[name], name)
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (tmp_path, files))
    assert ours["architectures"] == theirs["architectures"]
    for name in ("speculators_model_type", "markov_rank", "target_layer_ids"):
        assert ours.get(name) == theirs.get(name)
    nested = theirs.get("dflash_config", {})
    assert nested.items() <= {"confidence_head_alpha": 1.0, **ours.get("dflash_config", {})}.items()
