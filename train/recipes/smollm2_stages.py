"""The stages of `train.recipes.smollm2`."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import jax
import numpy as np

from dart_jax import _core
from dart_jax.data.records import Skipped, find_files
from dart_jax.errors import UserError
from dart_jax.files import write_atomically, writing
from dart_jax.models.platform.execution import best_dtype
from dart_jax.named.fetched import fetch
from dart_jax.progress import say, stage
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import read_target_config
from train.counting import program as counting
from train.counting.config import NgramConfig
from train.recipes.config import SmolLM2Config
from train.recipes.questions import benchmark_questions, write_questions
from train.recipes.stages import WINDOW, begin, package, train_recipe
from train.regenerate.config import RegenerateConfig
from train.regenerate.program import run as regenerate

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
    regeneration = RegenerateConfig(
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
        say(f"answers: {regenerate(regeneration)}")
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
