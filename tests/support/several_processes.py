"""Decoding on eight devices of two processes; a program, since JAX connects them at startup.

    several_processes.py DIRECTORY                        writes models and expected tokens
    several_processes.py DIRECTORY COORDINATOR PROCESS    decodes as one of two processes

Every process writes a JSON report: for each way of decoding, whether the tokens are those of one
device; and which parts of a matrix its devices hold.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tiny_model
from sharded_decoding import QWEN3

from dart_jax import DartModel
from dart_jax.decoding.drafting import PromptLookupConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.programs.processes import DistributedConfig, initialize
from train.objective.drafter_shape import DrafterShape

TARGET = dataclasses.replace(QWEN3, tie_word_embeddings=False)
MESHES = ("data=2,model=4", "model=8")
PROMPTS = [np.arange(3, 20), np.arange(7, 50)]
Load = Callable[[], DartModel]
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=1.0)}


def models(directory: Path, **options: Any) -> dict[str, tuple[Load, tuple[int, ...]]]:
    """The ways of drafting: what loads each, and the sizes of trees between which it changes."""
    load = functools.partial(DartModel.from_pretrained, directory / "target", **options)
    plain = functools.cache(load)
    ngram = directory / "ngram.dng"
    dart = functools.partial(load, directory / "dart", ngram)
    alone = functools.partial(load, None, ngram)
    return {
        "plain": (plain, ()),
        "prompt lookup": (lambda: plain().with_drafter(PromptLookupConfig()), ()),
        "dart": (dart, ()),
        "eagle3": (lambda: plain().with_drafter(directory / "eagle3"), ()),
        "draft model": (lambda: plain().with_drafter(directory / "target"), ()),
        "n-gram only": (alone, ()),
        "n-gram only, changing sizes": (alone, (0, 4, 8)),
        "dart, device": (functools.partial(dart, search="device"), ()),
    }


# The ways to sample on each mesh, by method.
CASES = {
    "data=2,model=4": {
        "dart": "greedy",
        "n-gram only, changing sizes": "greedy",
        "dart, device": "greedy",
    },
    "model=8": {
        "plain": "sampled",
        "prompt lookup": "greedy",
        "dart": "sampled",
        "eagle3": "sampled",
        "draft model": "greedy",
        "n-gram only": "sampled",
    },
}


def texts(directory: Path, mesh: str | None) -> Iterator[tuple[str, list[list[int]]]]:
    """New tokens of all prompts, for each way of decoding."""
    for method, (load, sizes) in models(directory, mesh=mesh).items():
        meshes = CASES.values() if mesh is None else [CASES[mesh]]
        for how in sorted({each[method] for each in meshes if method in each}):
            model = load()
            decoder = model.decoder(
                nodes=0 if model.drafter is None else 8,
                max_length=80,
                sizes=sizes,
                sampling=SAMPLINGS[how],
            )
            tokens = decoder(PROMPTS, 12, seed=3).tokens
            yield f"{method} {how}", [row.tolist() for row in tokens]


def prepare(directory: Path) -> None:
    """Writes the models, and what one device decodes."""
    tokenizer = tiny_model.train_tokenizer(
        map(tiny_model.read, tiny_model._FILES), TARGET.vocab_size
    )
    tiny_model.write_target(directory / "target", TARGET, tokenizer)
    for method, shape in (
        ("dart", DrafterShape(positions=4)),
        ("eagle3", DrafterShape(method="eagle3", positions=4)),
    ):
        tiny_model.write_drafter(directory / method, shape.config(TARGET))
    tokens = tiny_model.tokenize(tokenizer, tiny_model._FILES)
    tiny_model.NgramModel.count(tokens).save(directory / "ngram.dng")
    (directory / "expected.json").write_text(json.dumps(dict(texts(directory, None))))


def decode(directory: Path) -> None:
    """Compares what the devices of all processes decode."""
    assert (jax.device_count(), jax.local_device_count()) == (8, 4)
    expected = json.loads((directory / "expected.json").read_text())
    report: dict[str, Any] = {"same": {}, "parts": {}}
    for mesh in MESHES:
        for case, rows in texts(directory, mesh):
            report["same"][f"{mesh} {case}"] = rows == expected[case]
            print(mesh, case, rows == expected[case], file=sys.stderr, flush=True)
        params = DartModel.from_pretrained(directory / "target", mesh=mesh).params["target"]
        leaf = params["layers"][0]["mlp"]["down_proj"]["kernel"]
        size = leaf.shape[0] // int(mesh[-1])
        report["parts"][mesh] = sorted(s.index[0].start // size for s in leaf.addressable_shards)
    (directory / f"report{jax.process_index()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    if sys.argv[2:]:
        initialize(DistributedConfig(False, sys.argv[2], 2, int(sys.argv[3])))
        decode(directory)
    else:
        prepare(directory)
