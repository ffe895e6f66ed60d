"""Decoding on eight virtual devices; a program, since JAX fixes their number at startup.

Writes a JSON report: for each way of decoding, whether the texts are those of one device, and what
the devices exchange in a step.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tiny_model
from tiny_model import SHAPES

from dart_jax import DartModel
from dart_jax.decoding.decoder import Loop
from dart_jax.decoding.loop import start
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.step import step
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.platform.execution import WeightsDtype
from train.objective.drafter_shape import DrafterShape

QWEN3 = dataclasses.replace(
    SHAPES.target, num_attention_heads=8, num_key_value_heads=2, head_dim=16, vocab_size=320
)
EXPERTS = MoEConfig(8, 2, 32, norm_topk_prob=True)
SHARED = MoEConfig(8, 2, 32, norm_topk_prob=False, dense_layers=(0,), shared_intermediate_size=64)


def of(model_type: str, **fields: Any) -> TargetConfig:
    return dataclasses.replace(QWEN3, model_type=model_type, **fields)


BIASES = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
TARGETS = {
    "qwen3": QWEN3,
    "qwen3_moe": of("qwen3_moe", moe=EXPERTS),
    "llama": of("llama", tie_word_embeddings=False, **BIASES),
    "qwen2_moe": of("qwen2_moe", attention_bias=True, moe=SHARED),
    "olmo2": of("olmo2"),
    "gemma2": of(
        "gemma2",
        final_logit_softcapping=30.0,
        attn_logit_softcapping=50.0,
        hidden_act="gelu_pytorch_tanh",
        sliding_window=16,
        sliding_layers=(0, 2, 4),
    ),
}
PROMPTS = [np.arange(3, 20), np.arange(7, 50), np.arange(100, 104), np.arange(5, 9)]
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0),
    "filtered": Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.1),
}
LOOPS: dict[str, Loop] = {"fused": "fused", "host": "host", "changing sizes": "fused"}


def texts(model: DartModel, loop: str, sampling: Sampling) -> list[list[int]]:
    """New tokens of all prompts."""
    nodes = 0 if model.drafter is None else 8
    sizes = (0, 4, 8) if loop == "changing sizes" and nodes else ()
    decoder = model.decoder(
        nodes=nodes, max_length=80, sizes=sizes, sampling=sampling, loop=LOOPS[loop]
    )
    return [row.tolist() for row in decoder(PROMPTS, 24, seed=3).tokens]


def exchanged(model: DartModel) -> dict[str, list[list[int]]]:
    """The collectives of a plain step, and the shapes of their results."""
    decoder = model.decoder(max_length=64, nodes=0)
    prompts = decoder.pad(PROMPTS, 8)
    state, _ = start(decoder.config, decoder.params, prompts, decoder.options(0))
    text = step.lower(decoder.config, decoder.params, state).compile().as_text()
    found: dict[str, list[list[int]]] = collections.defaultdict(list)
    for shapes, kind in re.findall(r"= (.+?) (all-[a-z]+|collective-\w+)(?:-start)?\(", text):
        for shape in re.findall(r"\[([\d,]*)\]", shapes):
            found[kind].append([int(n) for n in shape.split(",") if n])
    return found


def main(directory: Path, names: list[str], meshes: list[str], weights: WeightsDtype) -> None:
    config = TARGETS["qwen3"]
    tokenizer = tiny_model.train_tokenizer(
        map(tiny_model.read, tiny_model._FILES), config.vocab_size
    )
    tokens = tiny_model.tokenize(tokenizer, tiny_model._FILES)
    ngram = directory / "ngram.dng"
    tiny_model.NgramModel.count(tokens).save(ngram)
    report: dict[str, Any] = {"same": {}, "exchanged": {}, "logits": {}}
    for name in names:
        target, drafter = directory / name, directory / f"{name}_drafter"
        tiny_model.write_target(target, TARGETS[name], tokenizer)
        tiny_model.write_drafter(drafter, DrafterShape(positions=4).config(TARGETS[name]))
        methods = {
            "plain": (None, None),
            "dart": (drafter, ngram),
            "ngram": (None, ngram),
            "draft model": (target, None),
        }
        for method, parts in methods.items():
            one = DartModel.from_pretrained(target, *parts, weights_dtype=weights)
            for mesh in meshes:
                several = DartModel.from_pretrained(
                    target, *parts, weights_dtype=weights, mesh=mesh
                )
                if method == "plain":
                    report["exchanged"][f"{name} {mesh}"] = exchanged(several)
                for loop in LOOPS:
                    for how, options in SAMPLINGS.items():
                        case = f"{name} {method} {mesh} {loop} {how}"
                        same = texts(one, loop, options) == texts(several, loop, options)
                        report["same"][case] = same
                        print(case, same, file=sys.stderr, flush=True)
    (directory / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    assert len(jax.devices()) == 8
    weights: Any = sys.argv[4] if len(sys.argv) > 4 else "stored"
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(";"), weights)
