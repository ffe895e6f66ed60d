"""ONNX Runtime, through its package for text generation, which also exports the model."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from eval.peers.engine import Setup, Stepwise


def load(setup: Setup) -> Stepwise:
    """Loads the exported target.

    The end of the text must be an id of the vocabulary here; a minimum length keeps it from being
    written. An engine that does write it differs from here on.
    """
    engine: Any = importlib.import_module("onnxruntime_genai")

    def export(part: Path) -> None:
        command = ["-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
        paths = ["-i", str(setup.transformers), "-o", str(part), "-c", str(setup.work / "onnx")]
        done = subprocess.run([sys.executable, *command, *paths])
        if done.returncode:
            raise RuntimeError("its exporter failed")

    directory = setup.converted(export)
    path = directory / "genai_config.json"
    options = json.loads(path.read_text())
    options["model"]["decoder"]["session_options"]["intra_op_num_threads"] = setup.threads
    path.write_text(json.dumps(options))
    model = engine.Model(str(directory))
    generator: Any = None

    def step(tokens: Any, position: int) -> int:
        nonlocal generator
        if position == 0:
            params = engine.GeneratorParams(model)
            length = setup.max_length
            params.set_search_options(max_length=length, min_length=length, do_sample=False)
            generator = engine.Generator(model, params)
            generator.append_tokens(np.array(tokens, np.int32))
        # Later it knows the token itself.
        generator.generate_next_token()
        return int(generator.get_next_tokens()[0])

    return Stepwise(setup.precision, step)
