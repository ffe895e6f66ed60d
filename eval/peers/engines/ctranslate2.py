"""CTranslate2, whose converter reads the directory of a model of transformers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from eval.peers.engine import Setup, Whole


def load(setup: Setup) -> Whole:
    """Loads the converted target."""
    engine: Any = importlib.import_module("ctranslate2")
    converters: Any = importlib.import_module("ctranslate2.converters")

    def convert(part: Path) -> None:
        converter = converters.TransformersConverter(str(setup.transformers))
        converter.convert(str(part), force=True)

    directory = setup.converted(convert)
    # Prompts are given as the vocabulary's words.
    words = json.loads((directory / "vocabulary.json").read_text())
    generator = engine.Generator(
        str(directory),
        compute_type=setup.precision,
        inter_threads=1,
        intra_threads=setup.threads,
    )

    def generate(prompt: np.ndarray, new_tokens: int) -> list[int]:
        results = generator.generate_batch(
            [[words[token] for token in prompt.tolist()]],
            max_length=new_tokens,
            include_prompt_in_result=False,
            end_token=[len(words)],  # never drawn
        )
        return results[0].sequences_ids[0]

    return Whole(setup.precision, generate)
