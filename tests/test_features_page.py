"""The matrix of docs/models.md says what the drafting methods themselves say."""

import dataclasses
from typing import get_type_hints

import pytest
from documents import ROOT
from jax.sharding import AbstractMesh
from tiny_configs import BLOCK, DART, EAGLE3, TARGET

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.search.choice import way_here
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.models.block_config import BlockKind
from dart_jax.models.drafter_config import DraftLayerConfig, ParallelConfig
from dart_jax.models.sharding.devices import Devices
from dart_jax.models.sharding.mesh import DATA, MODEL
from eval.methods.choice import NAMES
from eval.methods.registry import METHODS
from train.objective.drafter_shape import DrafterShape

DRAFTERS = {
    "DART": DART,
    "EAGLE-3": EAGLE3,
    "block drafter": BLOCK,
    "draft model": TARGET,
    "prompt lookup": PromptLookupConfig(),
    "n-gram alone": NgramConfig(),
}


@pytest.fixture(scope="module")
def matrix():
    """Feature -> method -> cell."""
    text = (ROOT / "docs/models.md").read_text()
    lines = text.split("## Drafting methods\n")[1].split("\n## ")[0].splitlines()
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    [_, *methods], _, *rows = table
    return {name: dict(zip(methods, cells, strict=True)) for name, *cells in rows}


def search_on_device(config):
    if not config.searches:
        return ""
    try:
        way_here("device", None, alone=config.host_buffer.candidates == 0)
    except UserError:
        return "refused"
    return "yes"


def shares_weights(drafter):
    """Between two devices, where its sizes divide."""
    if isinstance(drafter, DraftLayerConfig):
        drafter = dataclasses.replace(drafter, vocab_size=64, draft_vocab_size=64)
    mesh = AbstractMesh((1, 2), (DATA, MODEL))
    return Devices(mesh).with_drafter(drafter).split_drafter


@pytest.mark.parametrize("name", DRAFTERS)
def test_cells(matrix, name):
    drafter = DRAFTERS[name]
    config = DecodeConfig(TARGET, drafter, nodes=4)
    cell = {feature: cells[name] for feature, cells in matrix.items()}
    yes = {True: "yes", False: "no"}
    assert cell["searches candidates"] == yes[config.searches]
    assert cell["drafts with the noise of the target's draws"] == yes[config.couples]
    assert cell["search on the host (`host`)"] == ("yes" if config.searches else "")
    assert cell["search on the device (`device`)"] == search_on_device(config)
    assert (cell["n-gram model in the search"] == "yes") == isinstance(drafter, ParallelConfig)
    shared = cell["devices share the drafter's weights"]
    assert (shared == "yes") == shares_weights(drafter)


def test_methods_are_those_that_are_measured_and_trained(matrix):
    named = ", ".join(matrix["`--method` of `dart-jax speedup`"].values()).split("`")[1::2]
    assert tuple(METHODS) == NAMES
    chains = [name for name in METHODS if name.endswith("_chain")]
    assert sorted({*named} - {"_chain"}) == sorted({*METHODS} - {*chains} - {"plain", "text"})
    assert {f"{kind.lower()}_chain" for kind in BlockKind.__args__} == {*chains}
    trained = matrix["trained here"]
    names = {name for name in ("DART", "EAGLE-3") if trained[name] == "yes"}
    names |= {*trained["block drafter"].split(", ")}
    methods = get_type_hints(DrafterShape)["method"].__args__
    assert {name.lower().replace("-", "") for name in names} == {*methods}
