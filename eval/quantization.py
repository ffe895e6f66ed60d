"""Show what weights in 8 bits change: size, loss, most likely tokens, answers, acceptance.

    python -m eval.quantization
    python -m eval.quantization --target Qwen/Qwen3-0.6B --drafter fvliang/qwen0.6b-dart

Both models read the same tokens: held-out modules of the Python library, and what the model with
the stored weights answers to the demo's prompts.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from dart_jax.data.stdlib import HELD_OUT, held_out_files, read
from dart_jax.decoding.loop import Generation
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.models.layers import Params
from dart_jax.models.platform.execution import WeightsDtype
from dart_jax.models.pure import bind
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs, write_json
from dart_jax.programs.provenance import environment
from dart_jax.progress import tracked
from eval.benchmarks.prompts import demo_prompts
from eval.methods.measure import first_difference

_PROMPT_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class QuantizationConfig(ModelChoice):
    """Which model, and how much text."""

    weights: WeightsDtype = "int8"
    """How the weights are stored that are compared with those of the files."""
    prompts: int = 8
    """Functions for each of the demo's four groups."""
    max_new_tokens: int = 128
    """Tokens to generate for each prompt."""
    held_out: int = 16384
    """Tokens of held-out text to compute the loss of."""
    tree_nodes: int = 8
    """Nodes of the draft trees."""
    json: Path | None = None
    """Write the results to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("prompts", "max_new_tokens", "held_out", "tree_nodes"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a model answers to the prompts, greedily.

    Attributes:
      tokens: of each answer.
      tau: tokens emitted per verification; None without a drafter.
      identical: how many answers plain decoding gives the same tokens; None without a drafter.
    """

    tokens: list[list[int]]
    tau: float | None
    identical: int | None


class Difference(NamedTuple):
    """How two models differ on the same tokens.

    Attributes:
      same: share of positions with the same most likely token.
      divergence: mean Kullback-Leibler divergence of the other model's predictions, nats.
      losses: of the two, nats per token.
      error: of the other model's logits, relative to the first one's: of root mean squares.
    """

    same: float
    divergence: float
    losses: tuple[float, float]
    error: float


def answers_of(
    model: DartModel, prompts: Sequence[np.ndarray], config: QuantizationConfig
) -> Answers:
    """Lets a model continue prompts, with and without its drafter."""
    length = _PROMPT_TOKENS + config.max_new_tokens
    plain = model.with_drafter(None).decoder(nodes=0, max_length=length)
    drafting = model.decoder(nodes=config.tree_nodes, max_length=length)
    count = config.max_new_tokens

    def each(decoder: Any) -> list[Generation]:
        return [decoder([prompt], count) for prompt in tracked(prompts, "answers", Console())]

    alone = [made.tokens[0].tolist() for made in each(plain)]
    if model.drafter is None:
        return Answers(alone, None, None)
    drafted = each(drafting)
    # The first token is the prefill's.
    emitted = sum(len(made.tokens[0]) - 1 for made in drafted)
    tau = emitted / sum(int(made.steps[0]) for made in drafted)
    same = sum(a == made.tokens[0].tolist() for a, made in zip(alone, drafted, strict=True))
    return Answers(alone, tau, same)


@partial(jax.jit, static_argnums=(0, 1))
def _logits(config: Any, execution: Any, params: Params, tokens: jax.Array) -> jax.Array:
    """int32 [T] -> float32 [T - 1, V], of each next token."""
    count = len(tokens) - 1
    at = jnp.arange(count, dtype=jnp.int32)[None]
    target = bind(config, params, execution)
    out = target(tokens[None, :-1], at, jnp.tril(jnp.ones((1, count, count), bool)))
    return target.logits(out.hidden)[0]


def compare(
    one: DartModel, other: DartModel, texts: Iterable[tuple[np.ndarray, int]]
) -> Difference:
    """Compares predictions of texts, int [T], from a position on."""
    same, divergence, losses, squares = [], [], ([], []), np.zeros(2)
    for tokens, first in texts:
        a, b = (
            np.asarray(
                _logits(m.target, m.execution, m.params["target"], jnp.asarray(tokens)), np.float64
            )[first - 1 :]
            for m in (one, other)
        )
        squares += np.square(a - b).sum(), np.square(a).sum()
        p, q = (_log_softmax(x) for x in (a, b))
        same.append(p.argmax(-1) == q.argmax(-1))
        divergence.append((np.exp(p) * (p - q)).sum(-1))
        for values, found in zip((p, q), losses, strict=True):
            found.append(-np.take_along_axis(values, tokens[first:, None], -1)[:, 0])
    shares, nats = np.concatenate(same).mean(), np.concatenate(divergence).mean()
    one_loss, other_loss = (float(np.concatenate(found).mean()) for found in losses)
    error = math.sqrt(squares[0] / squares[1])
    return Difference(float(shares), float(nats), (one_loss, other_loss), error)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def agreeing_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two answers begin with alike."""
    at = first_difference(np.asarray(one), np.asarray(other))
    return len(one) if at is None else at


def held_out_windows(model: DartModel, config: QuantizationConfig) -> list[tuple[np.ndarray, int]]:
    """Held-out text in windows; predictions count from their second token on."""
    text = "\n".join(read(path) for group in HELD_OUT for path in held_out_files(group))
    tokens = np.asarray(model.tokenizer.encode(text)[: config.held_out], np.int32)
    length = min(512, model.target.max_length)
    return [(tokens[i : i + length], 1) for i in range(0, len(tokens) - 1, length)]


@dataclasses.dataclass(frozen=True)
class Report:
    """What changes; pairs are of the stored and of the other weights.

    Attributes:
      weights: how the other weights are stored.
      size: bytes of target and drafter.
      answers: to the prompts.
      on_text: predictions of held-out text.
      on_answers: predictions of the first model's answers.
    """

    weights: str
    size: tuple[int, int]
    answers: tuple[Answers, Answers]
    on_text: Difference
    on_answers: Difference

    @property
    def agreeing(self) -> list[int]:
        """How many tokens each two answers begin with alike."""
        one, other = (each.tokens for each in self.answers)
        return [agreeing_tokens(a, b) for a, b in zip(one, other, strict=True)]

    @property
    def same_answers(self) -> int:
        """How many answers are the same to the end."""
        one, other = (each.tokens for each in self.answers)
        return sum(a == b for a, b in zip(one, other, strict=True))

    def table(self) -> Table:
        """Shows the report."""
        count = len(self.agreeing)
        shown = Table(title=f"{self.weights} beside stored weights, greedy, {count} prompts")
        for column in ("", "stored", self.weights):
            shown.add_column(column, justify="right" if column else "left")
        shown.add_row("size of target and drafter, MB", *(f"{x / 1e6:.1f}" for x in self.size))
        shown.add_row("loss of held-out text, nats a token", *_four(self.on_text.losses))
        perplexities = (f"{math.exp(loss):.3f}" for loss in self.on_text.losses)
        shown.add_row("perplexity of held-out text", *perplexities)
        for name, found in (("held-out text", self.on_text), ("stored's answers", self.on_answers)):
            shown.add_row(f"same most likely token, {name}", "", f"{found.same:.2%}")
            shown.add_row(f"KL divergence, {name}, nats", "", f"{found.divergence:.5f}")
            shown.add_row(f"relative error of logits, {name}", "", f"{found.error:.2%}")
        shown.add_row("same answers", "", f"{self.same_answers} of {count}")
        median = statistics.median(self.agreeing)
        shown.add_row("tokens before answers differ, median", "", f"{median:.0f}")
        if all(each.tau is not None for each in self.answers):
            shown.add_row("tau", *(f"{each.tau:.2f}" for each in self.answers))
            own = (f"{each.identical} of {count}" for each in self.answers)
            shown.add_row("answers as of the model's own plain decoding", *own)
        return shown


def _four(values: Iterable[float]) -> list[str]:
    return [f"{value:.4f}" for value in values]


def measure(config: QuantizationConfig) -> Report:
    """Compares the models; raises UserError if there is nothing to compare."""
    if config.weights == "stored":
        raise UserError("--weights stored compares a model with itself; pass int8")
    one, other = models = dataclasses.replace(config, weights="stored").load(), config.load()
    found = demo_prompts(one.tokenizer, config.prompts, _PROMPT_TOKENS)
    prompts = [prompt.tokens for prompt in found]
    if not prompts:
        raise UserError("this Python has no source of the held-out modules of its library")
    answers = answers_of(one, prompts, config), answers_of(other, prompts, config)
    answered = [
        (np.concatenate([prompt, np.asarray(new, np.int32)]), len(prompt))
        for prompt, new in zip(prompts, answers[0].tokens, strict=True)
    ]
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(model.params)) for model in models]
    return Report(
        config.weights,
        (sizes[0], sizes[1]),
        answers,
        compare(one, other, held_out_windows(one, config)),
        compare(one, other, answered),
    )


def run(config: QuantizationConfig, console: Console) -> None:
    """Compares, prints and writes the report."""
    check_outputs(config.json)
    console.print(", ".join(f"{k} {v}" for k, v in environment().items()))
    report = measure(config)
    console.print(report.table())
    if config.json:
        content = dataclasses.asdict(report)
        content |= {"same_answers": report.same_answers, "agreeing": report.agreeing}
        content |= {"on_text": report.on_text._asdict(), "on_answers": report.on_answers._asdict()}
        write_json(config.json, {"environment": environment(), **content})


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(QuantizationConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
