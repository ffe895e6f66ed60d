"""What is asked: endless sequences of requests, the same for every server.

Request `i` of a workload depends on the options and `i` alone.

| `--workload` | prompts | new tokens |
|---|---|---|
| `demo` | functions of the demo's held-out modules | `--max-new-tokens` |
| a benchmark of `eval.benchmarks` | its questions' first turns | `--max-new-tokens` |
| `shared-prefix` | the demo's, each after the same `--prefix-tokens` tokens | `--max-new-tokens` |
| `chat`, `code`, `sharegpt` | cut from held-out modules, lengths as below | as below |

Lengths are log-normal and drawn independently. `chat` and `code` have medians and standard
deviations of the logarithms of the production traces that Microsoft published for "Splitwise:
efficient generative LLM inference using phase splitting" (ISCA 2024;
github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023: 19,366 requests of a chat
service, 8,819 of one that completes code). `sharegpt` has the means of ShareGPT's conversations in
"Efficient memory management for large language model serving with PagedAttention" (SOSP 2023,
figure 11), 161 tokens and 338; the spread is drawn there, not given, and taken to equal the mean.
Texts go on after their end until they have their length.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dart_jax.data.records import Skipped, refuse
from dart_jax.data.stdlib import HELD_OUT, held_out_files, read
from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from eval.benchmarks.prompts import demo_prompts
from eval.benchmarks.questions import prompt_tokens
from eval.benchmarks.registry import find, load
from eval.serving.client.completion import Request
from eval.serving.config import ServingBenchConfig

# Longest prompt of the demo benchmark.
_DEMO_TOKENS = 128
# Functions for each of the demo's groups, questions of a benchmark.
_PER_GROUP, _QUESTIONS = 64, 512
# Least tokens of a drawn prompt and of its answer.
_LEAST = 4


class Mix(NamedTuple):
    """Log-normal lengths: medians, in tokens, and standard deviations of the logarithms."""

    prompt: float
    prompt_deviation: float
    answer: float
    answer_deviation: float


MIXES = {
    "chat": Mix(1020, 0.985, 129, 0.859),
    "code": Mix(1469, 1.360, 13, 0.847),
    "sharegpt": Mix(114, 0.833, 239, 0.833),
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """An endless sequence of requests.

    Attributes:
      title: what it is, in a few words.
      request: the request of a number.
    """

    title: str
    request: Callable[[int], Request]

    def requests(self, start: int, count: int) -> list[Request]:
        """Requests number `start` and those after it."""
        return [self.request(number) for number in range(start, start + count)]


def load_tokenizer(config: ServingBenchConfig) -> Tokenizer:
    """The target's tokenizer; raises UserError if there is none."""
    return Tokenizer.load(
        hub.resolve(config.target_path, revision=config.revision, patterns=hub.TARGET)
    )


def make_workload(config: ServingBenchConfig, tokenizer: Tokenizer) -> Workload:
    """Makes the workload that the options name.

    Raises:
      UserError: its files are missing, or its prompts do not fit.
    """
    name = config.workload
    if name in MIXES:
        mix = MIXES[name]
        text = library_tokens(tokenizer)
        scale = "" if config.length_scale == 1 else f", lengths times {config.length_scale:g}"
        return Workload(
            f"{name}: log-normal lengths of a published workload{scale}",
            lambda number: _mixed(config, mix, text, number),
        )
    if name in ("demo", "shared-prefix"):
        prompts = [each.tokens for each in demo_prompts(tokenizer, _PER_GROUP, _DEMO_TOKENS)]
        # Those of a group follow each other: a few requests should come from all of them.
        prompts = [prompts[n] for n in np.random.default_rng(0).permutation(len(prompts))]
        title = "demo: functions of held-out library modules"
    else:
        skipped = Skipped()
        bad = skipped if config.skip_bad else refuse
        questions = load(name, config.data_dir, _QUESTIONS, bad)
        prompts = [prompt_tokens(each, (), tokenizer, config.thinking) for each in questions]
        title = f"{find(name).title}: first turns{skipped}"
    if name == "shared-prefix":
        prefix = library_tokens(tokenizer)[: config.prefix_tokens]
        prompts = [np.concatenate([prefix, prompt]) for prompt in prompts]
        title += f", after the same {len(prefix)} tokens"
    fitting = [each for each in prompts if len(each) + config.max_new_tokens <= config.longest]
    if not fitting:
        raise UserError(
            f"no prompt of {name} and {config.max_new_tokens} new tokens are within --longest "
            f"{config.longest} together"
        )
    return Workload(title, lambda number: _listed(config, fitting, number))


def library_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """The text of all held-out modules, int32 [n]."""
    files = [path for group in HELD_OUT for path in held_out_files(group)]
    if not files:
        raise UserError("this Python has no library sources, which prompts are cut from")
    return np.concatenate([tokenizer.encode(read(path)) for path in files]).astype(np.int32)


def _listed(config: ServingBenchConfig, prompts: Sequence[np.ndarray], number: int) -> Request:
    """The prompts in turn, again and again."""
    prompt = prompts[number % len(prompts)]
    return _request(config, prompt, config.max_new_tokens, number, config.ignore_eos)


def _mixed(config: ServingBenchConfig, mix: Mix, text: np.ndarray, number: int) -> Request:
    """A window of the text; lengths that do not fit are drawn again."""
    rng = np.random.default_rng([config.seed, number])
    while True:
        prompt, answer = (
            max(_LEAST, round(config.length_scale * math.exp(rng.normal(math.log(median), width))))
            for median, width in (mix[:2], mix[2:])
        )
        if prompt + answer <= min(config.longest, len(text)):
            break
    start = rng.integers(len(text) - prompt + 1)
    return _request(config, text[start : start + prompt], answer, number, True)


def _request(
    config: ServingBenchConfig, prompt: np.ndarray, tokens: int, number: int, ignore_eos: bool
) -> Request:
    seed = (config.seed + number) % 2**32
    ids = tuple(map(int, prompt))
    return Request(ids, tokens, config.temperature, seed, ignore_eos)
