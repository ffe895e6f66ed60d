"""Train drafters and count n-grams for SmolLM2-135M-Instruct, in a given time.

    python -m train.recipes.smollm2 --minutes 60 --export build/drafters

The target, fetched once, answers questions of ShareGPT and those of --data, greedily and sampled,
turn by turn. From its answers n-grams are counted and drafters trained: DART's, with the recipe
`smollm2.toml`; in the same time DSpark's, with `smollm2_dspark.toml`, and EAGLE-3's, with
`smollm2_eagle3.toml`; and pair scores for DART's with `smollm2_pairs.toml`. A laptop's night, an
hour of Colab and ten minutes of a large GPU are the same command with other --minutes.

--export receives `drafter` (DART, with the pair scores), `dspark`, `eagle3`, `ngram.dng`. Each is
written as soon as it is made. The same command goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from dart_jax import _core
from dart_jax.data.records import Skipped, find_files
from dart_jax.errors import UserError
from dart_jax.files import write_atomically, writing
from dart_jax.models.platform.execution import best_dtype
from dart_jax.named.fetched import fetch
from dart_jax.programs.command_line import RESUMABLE, parse, program
from dart_jax.progress import say, stage
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import read_target_config
from train import regenerate
from train.counting import program as counting
from train.counting.config import NgramConfig
from train.objective.drafter_shape import DrafterShape
from train.recipes.questions import benchmark_questions, write_questions
from train.recipes.stages import WINDOW, begin, package, train_recipe
from train.run.config import TrainerConfig

# Parts of the time that the stages get: all drafters equally much.
_PARTS = {"answers": 0.3, "dart": 0.2, "pairs": 0.1, "dspark": 0.2, "eagle3": 0.2}

_TIMES = "answers.json"  # minutes that answering has taken, and whether it is done
_LEAST = 0.05  # minutes of answers when an interrupted run goes on

# A CPU keeps the target's outputs, which take much of its time, draws anchors among the rows that
# have answers after them, predicts late positions after few of them, and multiplies bfloat16 where
# it can; DSpark learns faster from many small steps.
_ANSWERS = {"cpu": (16, 224), "other": (256, 320)}  # answers at once, tokens of each
_DTYPE = "bfloat16" if "BF16" in _core.instructions else "float32"
_STEPS = {
    "cpu": "--teacher cached --context 512 --batch-size 16 --anchors 128 --thin "
    f"--dtype {_DTYPE} --held-out 0.02 --save-every 50 --eval-every 100",
    "other": "--teacher online --context 1024 --batch-size 16 --chunk 256 --held-out 0.02",
}


@dataclasses.dataclass(frozen=True)
class SmolLM2Config:
    """Place, time and data of the training."""

    minutes: float
    """Time for answers and training together. What comes on top: compiling the training, counting
    n-grams, a block drafter's first weights, and on a CPU the target's outputs for the answers,
    about as long as the answers."""
    work: Path = Path("build/smollm2")
    """Directory where every stage writes its result."""
    export: Path | None = None
    """Directory to write the drafters, in bfloat16, and the n-gram model to."""
    target: str = "smollm2"
    """Directory, hub repository or name of the target."""
    data: tuple[str, ...] = ()
    """Chats and instructions whose questions are answered too, as for `train.regenerate`, without
    their system prompts and tools; each of them, and ShareGPT, as often as the others."""
    no_sharegpt: bool = False
    """Do not fetch ShareGPT, 27 MB, and answer its questions."""
    leave_out: tuple[str, ...] = ()
    """Files of benchmarks: no question of their first 500 records is answered."""
    draft_vocab: int = 8192
    """Tokens that the drafters can draft, the most frequent ones of the answers."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise UserError(f"--minutes must be a finite number above 0, got {self.minutes:g}")
        if self.no_sharegpt and not self.data:
            raise UserError("no questions: pass --data, or leave --no-sharegpt out")
        if self.export is not None and self.export.resolve() == self.work.resolve():
            raise UserError("--export and --work must be different directories")
        # What the last stages would refuse after hours.
        TrainerConfig(seed=self.seed)
        DrafterShape(draft_vocab=self.draft_vocab)


def run(config: SmolLM2Config) -> None:
    """Runs every unfinished stage; raises UserError if the work directory belongs to another
    configuration, or a stage cannot run."""
    device = "cpu" if jax.default_backend() == "cpu" else "other"
    result = "answers or drafters" * (config.work / _TIMES).is_file()
    begin(config, result, **{"kind of device": device})
    largest = read_target_config(hub.resolve(config.target, patterns=hub.TARGET)).vocab_size
    if config.draft_vocab > largest:
        raise UserError(f"--draft-vocab must be at most {largest}, the target's vocabulary")
    questions, answers = config.work / "questions.jsonl", config.work / "answers.jsonl"
    if not questions.is_file():
        with stage("collecting the questions"):
            _collect(config, questions)
    _answer(config, questions, answers, *_ANSWERS[device])
    _count(config, answers)
    for name, parent in (("dart", None), ("pairs", "dart"), ("dspark", None), ("eagle3", None)):
        if not (config.work / name / "config.json").is_file():  # written last
            options = [
                *("--target", config.target, "--data", answers, "--seed", config.seed),
                *("--out", config.work / name, "--cache", config.work / "cache"),
                *("--minutes", config.minutes * _PARTS[name]),  # it knows itself what is left
                *_STEPS[device].split(),
            ]
            if device == "other":
                options += ["--dtype", np.dtype(best_dtype()).name]
            if name == "dspark" and device == "cpu":
                options += ["--batch-size", 8, "--anchors", 24, "--no-thin"]
            if parent is None:
                options += ["--draft-vocab", config.draft_vocab]
            else:
                options += ["--init", config.work / parent / "drafter"]
            train_recipe("smollm2" if name == "dart" else f"smollm2_{name}", options)
        if config.export is not None:
            exported, window = ("drafter", WINDOW) if name in ("dart", "pairs") else (name, None)
            with writing("the drafter", config.export):
                package(config.work / name / "drafter", config.export / exported, window)


def _collect(config: SmolLM2Config, out: Path) -> None:
    """Writes the questions to answer."""
    sources = [[file] for file in ([fetch("sharegpt")] if not config.no_sharegpt else [])]
    sources += [list(find_files((name,))) for name in config.data]
    left_out = benchmark_questions(find_files(config.leave_out)) if config.leave_out else set()
    skipped, partial = Skipped(), out.with_suffix(".partial")
    with writing("the questions", out), partial.open("wb") as file:
        count = write_questions(sources, file, left_out=left_out, seed=config.seed, bad=skipped)
    partial.replace(out)
    say(f"{count:,} chats to answer{skipped}")


def _answer(config: SmolLM2Config, questions: Path, answers: Path, batch: int, most: int) -> None:
    """Lets the target answer in its part of the time, of which interrupted runs have had some."""
    path, began = config.work / _TIMES, time.monotonic()
    spent, done = json.loads(path.read_text()) if path.is_file() else (0.0, False)
    if done:
        return
    left = config.minutes * _PARTS["answers"] - spent
    regeneration = regenerate.RegenerateConfig(
        target=config.target,
        data=(str(questions),),
        out=answers,
        temperature=(0.0, 0.8),
        max_new_tokens=most,
        batch_size=batch,
        seed=config.seed,
        minutes=max(left, _LEAST),
    )
    try:
        say(f"answers: {regenerate.run(regeneration)}")
        done = True
    finally:
        spent += (time.monotonic() - began) / 60
        write_atomically(path, json.dumps([spent, done]).encode())


def _count(config: SmolLM2Config, answers: Path) -> None:
    """Counts the n-grams of the answers, unless that is done."""
    path = config.work / "ngram.dng"
    if not path.is_file():
        directory = hub.resolve(config.target, patterns=hub.TOKENIZER)
        summary = counting.run(NgramConfig((str(answers),), str(directory), path))
        say(f"n-grams: {summary}")
    if config.export is not None:
        with writing("the n-gram model", config.export):
            config.export.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, config.export / "ngram.dng")


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program(RESUMABLE):
        run(parse(SmolLM2Config, args, __doc__))


if __name__ == "__main__":
    main()
