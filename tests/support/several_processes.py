"""Decoding on eight devices of two processes; a program, since JAX connects them at startup.

    several_processes.py DIRECTORY                        writes models and expected tokens
    several_processes.py DIRECTORY COORDINATOR PROCESS    decodes as one of two processes

Every process writes a JSON report: for each way of decoding, whether the tokens are those of one
device; and which parts of a matrix its devices hold.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from sharded_decoding import SAMPLINGS, Models, texts

from dart_jax.programs.processes import DistributedConfig, initialize

# The methods on each mesh, and how they sample.
CASES = {
    "data=2,model=4": {
        "dart": "greedy",
        "ngram, changing sizes": "greedy",
        "dart, device": "greedy",
    },
    "model=8": {
        "plain": "sampled",
        "prompt lookup": "greedy",
        "dart": "sampled",
        "eagle3": "sampled",
        "draft model": "greedy",
        "ngram": "sampled",
    },
}


def decoded(
    models: Models, cases: dict[str, str], mesh: str | None = None
) -> Iterator[tuple[str, list[list[int]]]]:
    """New tokens of all prompts, for each way of decoding."""
    for method, how in cases.items():
        yield f"{method} {how}", texts(models.load(method, mesh), method, SAMPLINGS[how])


def prepare(models: Models, directory: Path) -> None:
    """Writes the models, and the tokens that one device decodes."""
    models.write()
    expected = {name: rows for cases in CASES.values() for name, rows in decoded(models, cases)}
    (directory / "expected.json").write_text(json.dumps(expected))


def compare(models: Models, directory: Path) -> None:
    """Compares the tokens that the devices of all processes decode."""
    assert (jax.device_count(), jax.local_device_count()) == (8, 4)
    expected = json.loads((directory / "expected.json").read_text())
    report: dict[str, Any] = {"same": {}, "parts": {}}
    for mesh, cases in CASES.items():
        for case, rows in decoded(models, cases, mesh):
            report["same"][f"{mesh} {case}"] = rows == expected[case]
            print(mesh, case, rows == expected[case], file=sys.stderr, flush=True)
        params = models.load("plain", mesh).params["target"]
        leaf = params["layers"][0]["mlp"]["down_proj"]["kernel"]
        size = leaf.shape[0] // int(mesh[-1])
        report["parts"][mesh] = sorted(s.index[0].start // size for s in leaf.addressable_shards)
    (directory / f"report{jax.process_index()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    models = Models(directory, "qwen3")
    if sys.argv[2:]:
        initialize(DistributedConfig(False, sys.argv[2], 2, int(sys.argv[3])))
        compare(models, directory)
    else:
        prepare(models, directory)
