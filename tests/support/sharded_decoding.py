"""Decoding on eight virtual devices; a program, since JAX fixes their number at startup.

    sharded_decoding.py DIRECTORY TARGET..                  in one process
    sharded_decoding.py DIRECTORY COORDINATOR PROCESS       in one of two processes

Writes a JSON report: for each way of decoding, whether the texts are those of one device, what the
devices exchange in a step, and which parts of a matrix they hold.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tiny_model
from decoding import begin_model, decode
from engine_requests import ask
from tiny_configs import block_drafter
from tiny_model import SHAPES

from dart_jax import DartModel
from dart_jax.decoding.drafting.text import LONGEST
from dart_jax.decoding.options import LogitsConfig, Sampling
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.programs import burst
from dart_jax.engine.request import Output, Request
from dart_jax.engine.thread import EngineThread
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.kernels.choices import WeightsDtype
from dart_jax.programs.processes import DistributedConfig, initialize
from dart_jax.weights.checkpoint import save_drafter
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
    "int8": QWEN3,  # with weights in 8 bits
    "blocks": QWEN3,  # with block drafters
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
METHODS = "plain", "dart", "dart, changing sizes", "eagle3", "ngram", "draft model", "text"
# The last one cannot be split among eight devices, which share the head that it reads.
BLOCKS = ("dflash", "jetspec", "dspark", "dflash2", "whole dflash")


class Case(NamedTuple):
    """One way to decode."""

    target: str
    mesh: str
    method: str
    sampling: str

    def __str__(self) -> str:
        return ", ".join(self)


# What two processes decode: a group of devices is in one, or in both.
TOGETHER = [
    Case("qwen3", "data=2,model=4", "dart", "greedy"),
    Case("qwen3", "data=2,model=4", "ngram, changing sizes", "greedy"),
    Case("qwen3", "data=2,model=4", "dart, device", "greedy"),
    Case("qwen3", "model=8", "plain", "sampled"),
    Case("qwen3", "model=8", "text", "sampled"),
    Case("qwen3", "model=8", "dart", "sampled"),
    Case("qwen3", "model=8", "eagle3", "sampled"),
    Case("qwen3", "model=8", "draft model", "greedy"),
    Case("qwen3", "model=8", "ngram", "sampled"),
]


def cases(target: str) -> list[Case]:
    """With Qwen3 every method and every way to sample; elsewhere what may differ."""
    few = ("plain", "greedy"), ("dart", "sampled")
    if target == "blocks":
        meshes = "model=2", "data=2,model=4"
        every = [Case(target, mesh, name, "greedy") for name in BLOCKS[:-1] for mesh in meshes]
        eight = ("dspark", "sampled"), ("whole dflash", "greedy")
        return [*every, *(Case(target, "model=8", *how) for how in eight)]
    if target != "qwen3":
        return [Case(target, "data=2,model=4", *how) for how in few]
    every = {(method, "greedy") for method in METHODS}
    every |= {("plain", "sampled"), ("dart", "sampled"), ("dart", "filtered")}
    most = [Case(target, "data=2,model=4", *how) for how in sorted(every)]
    return most + [Case(target, mesh, *how) for mesh in ("model=2", "model=8") for how in few]


def texts(model: DartModel, method: str, sampling: Sampling) -> list[list[int]]:
    """New tokens of all prompts."""
    nodes = 8 if model.drafter is not None or model.text_drafts else 0
    if method.endswith("changing sizes"):
        nodes = None
    options = {"nodes": nodes, "max_length": 80, "sampling": sampling}
    return [row.tolist() for row in decode(model, PROMPTS, 24, 3, **options).tokens]


def drafts(model: DartModel) -> list[list[list[list[int]]]]:
    """The trees that are verified with the first new tokens of each prompt: random drafters are
    hardly ever right, and none of what they draft is in the texts."""
    trees: list[list[list[list[int]]]] = [[] for _ in PROMPTS]
    for new in begin_model(model, PROMPTS, 6, 3, nodes=8, max_length=80, drafts=True):
        for row, output in new.items():
            if output.draft is not None:
                trees[row].append(output.draft.tree.tolist())
    return trees


def answered(model: DartModel, *requests: Request) -> list[Output]:
    """Answers of a server's engine, which reads prompts in several chunks."""
    options = EngineConfig(slots=2, max_length=80, chunk=16, page=16, tree_nodes=4, warmup="none")
    engine = EngineThread(model, options)
    answers = ask(engine, *requests)
    engine.close()
    return answers


def served(model: DartModel) -> list[list[int]]:
    """Answers to requests with different options."""
    samplings = zip(PROMPTS, [*SAMPLINGS.values(), Sampling()], strict=True)
    requests = (Request(*each, seed=n) for n, each in enumerate((p, 16, s) for p, s in samplings))
    return [answer.tokens.tolist() for answer in answered(model, *requests)]


def prompt_scores(model: DartModel) -> list[Any]:
    """Scores of the prompts."""
    answers = answered(model, *(Request(prompt, 0, prompt_logprobs=5) for prompt in PROMPTS))
    return [answer.prompt_logprobs for answer in answers]


def reports(model: DartModel) -> list[Any]:
    """Logits of the first new tokens of each prompt, and their log-probabilities."""
    return [
        decode(model, PROMPTS, 4, max_length=64, logits=LogitsConfig(**what)).scores
        for what in ({"scores": True}, {"logprobs": 5})
    ]


def apart(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference of any numbers; infinite if tokens or ranks are others."""
    pairs = list(zip(*map(jax.tree.leaves, (ours, theirs)), strict=True))
    if not all(np.array_equal(a, b) for a, b in pairs if a.dtype == np.int32):
        return float("inf")
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def exchanged(model: DartModel) -> dict[str, list[list[int]]]:
    """The collectives of a step, and the shapes of their results."""
    nodes = 0 if model.drafter is None else 8
    engine = begin_model(model, PROMPTS, 8, max_length=64, nodes=nodes, burst=1).engine
    runner = engine.runner
    program = runner.program(nodes, "greedy")
    rows = runner._table.rows(len(PROMPTS) * [None], 1, tokens=nodes > 0)
    trees = np.zeros((len(PROMPTS), 4, nodes + 1), np.int32) if nodes else None
    # Without the search, whose trees one device of a group sends to the others.
    pools, one = runner._pools_for(nodes > 0), np.int32(1)
    arrays = runner.params, pools, None, rows, trees, None, one, one
    trust = np.ones(LONGEST, np.float32) if nodes else None
    text = burst.lower(program, *arrays, trust=trust).compile().as_text()
    shapes_of: dict[str, list[list[int]]] = collections.defaultdict(list)
    for shapes, kind in re.findall(r"= (.+?) (all-[a-z]+|collective-\w+)(?:-start)?\(", text):
        for shape in re.findall(r"\[([\d,]*)\]", shapes):
            shapes_of[kind].append([int(n) for n in shape.split(",") if n])
    return shapes_of


class Models:
    """The files of a target with its drafters, and of the n-gram model of some text."""

    def __init__(self, directory: Path, name: str):
        self.name, self.target, self.ngram = name, directory / name, directory / "ngram.dng"
        self.weights: WeightsDtype = "int8" if name == "int8" else "stored"
        self.drafters = {"draft model": self.target}
        for method in ("dart", "eagle3", *BLOCKS):
            self.drafters[method] = directory / f"{name}_{method}"

    def write(self) -> None:
        """Writes the files."""
        files = tiny_model._FILES
        tokenizer = tiny_model.train_tokenizer(map(tiny_model.read, files), QWEN3.vocab_size)
        tiny_model.NgramModel.count(tiny_model.tokenize(tokenizer, files)).save(self.ngram)
        tiny_model.write_target(self.target, TARGETS[self.name], tokenizer)
        for method in ("dart", "eagle3"):
            target = TARGETS[self.name]
            config = DrafterShape(method=method, positions=4).config(target)
            config = config.with_window(target.sliding_window)  # Gemma 2's alone
            tiny_model.write_drafter(self.drafters[method], config)
        uneven = dataclasses.replace(QWEN3, intermediate_size=100)
        for method in BLOCKS:
            target = uneven if "whole" in method else QWEN3
            parts = block_drafter(target, method.removeprefix("whole "))
            save_drafter(self.drafters[method], *parts)

    def load(self, method: str, mesh: str | None = None) -> DartModel:
        """The model that decodes by a method."""
        name, _, how = method.partition(", ")
        model = DartModel.from_pretrained(
            self.target,
            self.drafters.get(name),
            self.ngram if name in ("dart", "ngram") else None,
            weights=self.weights,
            mesh=mesh,
            search="device" if how == "device" else "auto",
        )
        return model.with_drafter(None) if name == "plain" else model


def main(directory: Path, targets: list[str]) -> None:
    names = "same", "exchanged", "drafting", "split", "logits"
    report: dict[str, Any] = {name: {} for name in names}

    def add(what: str, name: object, value: Any) -> None:
        report[what][str(name)] = value
        if what in ("same", "logits"):
            print(what, name, value, file=sys.stderr, flush=True)

    for target in targets:
        models = Models(directory, target)
        models.write()
        alone: dict[tuple[str, ...], list[list[int]]] = {}  # texts of one device
        for (mesh, method), some in itertools.groupby(cases(target), key=lambda case: case[1:3]):
            # A single device has the form of a mesh if it is one, of one device.
            one = models.load(method, "model=1" if target == "int8" else None)
            several, name = models.load(method, mesh), f"{target}, {mesh}"
            if method in BLOCKS:
                add("drafting", f"{method}, {mesh}", exchanged(several))
            if method == "dart":
                add("drafting", name, exchanged(several))
                split, *_ = jax.tree.leaves(several.params["drafter"]["lm_head"]["kernel"])
                add("split", name, split.sharding.shard_shape(split.shape)[1] / split.shape[1])
            if method == "plain":
                add("exchanged", name, exchanged(several))
                add("logits", name, apart(reports(one), reports(several)))
            for case in some:
                how, sampling = case[2:], SAMPLINGS[case.sampling]
                if how not in alone:
                    alone[how] = texts(one, method, sampling)
                same = alone[how] == texts(several, method, sampling)
                add("same", case, same and (method not in BLOCKS or drafts(one) == drafts(several)))
            if target == "qwen3" and method == "dart":
                difference = apart(prompt_scores(one), prompt_scores(several))
                add("logits", f"scores, {mesh}", difference)
                if mesh == "model=2":
                    add("same", "served", served(one) == served(several))
            jax.clear_caches()  # a process can map only so much code into its memory
    (directory / "report.json").write_text(json.dumps(report))


def together(directory: Path) -> None:
    """Compares the texts of all processes' devices with those of one."""
    models, report = Models(directory, "qwen3"), {"same": {}, "parts": {}}
    for case in TOGETHER:
        sampling = SAMPLINGS[case.sampling]
        several = models.load(case.method, case.mesh)
        same = texts(several, case.method, sampling) == texts(
            models.load(case.method), case.method, sampling
        )
        report["same"][str(case)] = same
        print(case, same, file=sys.stderr, flush=True)
        leaf = several.params["target"]["layers"][0]["mlp"]["down_proj"]["kernel"]
        size = leaf.shape[0] // int(case.mesh[-1])
        parts = sorted(shard.index[0].start // size for shard in leaf.addressable_shards)
        report["parts"][case.mesh] = parts
    (directory / f"report{jax.process_index()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    directory, *words = sys.argv[1:]
    if words[-1].isdecimal():
        initialize(DistributedConfig(False, words[0], 2, int(words[1])))
        together(Path(directory))
    else:
        main(Path(directory), words)
