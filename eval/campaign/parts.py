"""The parts of campaigns: programs and their options, the most valuable first."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """A part of a campaign.

    Attributes:
      name: of its files, `NAME.json`, `NAME.log`.
      what: what it measures, in words.
      module: the program, for `python -m`.
      words: its options; {out} is the campaign's directory, {models} that of --models,
        and {data} the option --data-dir, if there is one.
      small: those for a try on a CPU.
    """

    name: str
    what: str
    module: str
    words: str
    small: str


_TRAINED = "--drafter {out}/drafters/drafter --ngram {out}/drafters/ngram.dng"
_QUICK = "--max-new-tokens 16 --repeats 1"
# What a try of a program takes, where the part itself asks nothing of it.
_TRIED = f"--model demo --method dart,pld --bench demo --prompts 1 {_QUICK}"
_TRIED_LOSSLESS = (
    "--model demo --method dart --prompts 1 --samples 0 --max-new-tokens 8 --batch-size 1 "
    "--tree-nodes 8 --temperature 0"
)
_TRIED_PEERS = "--model demo --engine dart --prompts 1 --new-tokens 4 --repeats 1"
_TRIED_SERVER = "--model demo --clients 2 --requests 4 --rounds 1 --max-new-tokens 8"
_SHAPE = "--acceptance 3 --prompts 4 --max-new-tokens 256 --tree-nodes"
# Where a part trains, its report is the run's own directory; in small, the second does.
TRAINING = "train.recipes.smollm2", "train.drafter"
GPU_PARTS = (
    Part(
        "methods", "SmolLM2 with every method it has", "eval.speedup",
        "--model smollm2 --method all --bench questions --prompts 24 --max-new-tokens 256",
        _TRIED,
    ),
    Part(
        "lossless", "the same tokens drafted and plain", "eval.lossless",
        "--model smollm2 --method all --prompts 2 --samples 0 --max-new-tokens 64 --batch-size 8 "
        "--tree-nodes 16 0 --temperature 0 1 --top-k 0 --top-p 1",
        _TRIED_LOSSLESS,
    ),
    Part(
        "qwen3-1.7b", "a shape of 1.7 B parameters, three tokens a verification", "eval.speedup",
        f"--shape qwen3-1.7b {_SHAPE} 16",
        f"--shape demo --acceptance 2 --tree-nodes 4 --prompts 1 {_QUICK}",
    ),
    Part(
        "qwen3-8b", "a shape of 8 B parameters, the same", "eval.speedup",
        f"--shape qwen3-8b {_SHAPE} 16",
        f"--shape demo --acceptance 2 --tree-nodes 8 --prompts 1 {_QUICK}",
    ),
    *(
        Part(
            f"latency-{size}", "a step against the hardware's limits, and what nodes cost",
            "eval.latency",
            f"--shape qwen3-{size} --context 1024 4096 --tree-nodes 4 16 60",
            "--shape tiny --context 64 --tree-nodes 4 --repeats 1",
        )
        for size in ("1.7b", "8b")
    ),
    Part(
        "batches", "SmolLM2 from one text to 64 together", "eval.speedup",
        "--model smollm2 --bench demo --prompts 16 --batch-size 1 8 64 --repeats 2",
        f"--model demo --bench demo --prompts 1 --batch-size 1 4 {_QUICK}",
    ),
    Part(
        "server", "a server under load, drafted and plain", "eval.serving",
        "--model smollm2 --clients 1 8 64 --rounds 2",
        _TRIED_SERVER,
    ),
    Part(
        "training", "five minutes of training for SmolLM2", TRAINING[0],
        "--minutes 5 --work {out}/training --export {out}/drafters",
        "--target demo --out {out}/training --data eval/benchmarks/made.py --steps 2 "
        "--context 64 --batch-size 2 --anchors 4 --draft-vocab 256 --eval-prompts 0",
    ),
    Part(
        "trained", "SmolLM2 with the drafters of these minutes", "eval.speedup",
        f"--target smollm2 {_TRAINED} --eagle3 {{out}}/drafters/eagle3 --block "
        "{out}/drafters/dspark --method dart,eagle3,dspark --bench questions --prompts 24",
        f"--target demo --drafter {{out}}/training/drafter --bench demo --prompts 1 {_QUICK}",
    ),
)  # fmt: skip

_SMOLLM2 = "--model smollm2"
_BENCHMARKS = "--bench alpaca,code_alpaca,gsm8k,humaneval,math500,mbpp,mt_bench {data}"
_COPY = "--bench copy {data} --prompts 8 --repeats 1"
_LOSSLESS = "--model demo --method all --tree-nodes 0 16 --temperature 0 1 --samples 0"
CPU_PARTS = (
    Part(
        "questions", "SmolLM2 on our own eight questions", "eval.speedup",
        f"{_SMOLLM2} --repeats 5", _TRIED,
    ),
    Part(
        "benchmarks", "SmolLM2 on seven benchmarks, by method", "eval.speedup",
        f"{_SMOLLM2} --method dart,dart_no_ngram,text,pld {_BENCHMARKS} --prompts 8 --repeats 3",
        _TRIED,
    ),
    Part(
        "llama-cpp", "SmolLM2 in llama.cpp, the same file", "eval.peers",
        f"{_SMOLLM2} --engine dart llama.cpp {_BENCHMARKS} --prompts 4 --new-tokens 64 "
        "--repeats 2 --threads 2 1",
        _TRIED_PEERS,
    ),
    *(
        Part(
            f"llama-cpp-{type}", f"SmolLM2 in llama.cpp, in {type.upper()}", "eval.peers",
            f"--target {{models}}/smollm2-{type}.gguf --drafter dart_jax/smollm2/drafter "
            "--ngram dart_jax/smollm2/ngram.dng --engine dart llama.cpp "
            f"{_BENCHMARKS} --prompts 2 --new-tokens 64 --repeats 2 --threads 2",
            _TRIED_PEERS,
        )
        for type in ("q4_0", "q8_0", "f16")
    ),
    Part(
        "torch", "SmolLM2's floats in PyTorch", "eval.peers",
        f"{_SMOLLM2} --weights float --engine dart transformers {_BENCHMARKS} --prompts 1 "
        "--new-tokens 64 --repeats 2",
        _TRIED_PEERS,
    ),
    Part(
        "sampled", "SmolLM2 at three temperatures", "eval.speedup",
        f"{_SMOLLM2} --method dart {_BENCHMARKS} --prompts 8 --temperature 0 0.7 1 --repeats 1",
        _TRIED,
    ),
    Part(
        "schema", "SmolLM2 under a JSON schema", "eval.speedup",
        f"{_SMOLLM2} --method dart --bench alpaca,gsm8k,mt_bench {{data}} --prompts 8 --repeats 1 "
        "--max-new-tokens 96 --json-schema examples/answer_schema.json",
        _TRIED,
    ),
    Part(
        "copying", "SmolLM2, Q4_1: texts that repeat their prompts", "eval.speedup",
        f"{_SMOLLM2} --method text,pld,dart,dart_alone {_COPY}",
        _TRIED,
    ),
    *(
        Part(
            f"copying-{name}", f"{title}, Q4_K_M: texts that repeat their prompts", "eval.speedup",
            f"--target {{models}}/{name}-q4_k_m.gguf --method text,pld {_COPY}",
            _TRIED,
        )
        for name, title in (
            ("qwen2.5-coder-0.5b", "Qwen2.5-Coder-0.5B"), ("gemma-3-270m", "Gemma-3-270M"),
        )
    ),
    Part(
        "server", "a server of SmolLM2 under load, drafted and plain", "eval.serving",
        f"{_SMOLLM2} --bench mt_bench {{data}} --clients 1 4 16 --rounds 3",
        _TRIED_SERVER,
    ),
    Part(
        "lossless", "the same tokens drafted and plain", "eval.lossless",
        f"{_LOSSLESS} --batch-size 1 8 --prompts 4 --max-new-tokens 64",
        _TRIED_LOSSLESS,
    ),
    Part(
        "lossless-bfloat16", "the same tokens drafted and plain, in bfloat16", "eval.lossless",
        f"{_LOSSLESS} --dtype bfloat16 --batch-size 4 --prompts 4 --max-new-tokens 64",
        _TRIED_LOSSLESS,
    ),
)  # fmt: skip
