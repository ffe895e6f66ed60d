"""eval.latency on several devices: what it times, and the limits of one of them."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from eval.latency.case import needed_memory
from eval.latency.hardware import Hardware
from eval.latency.program import LatencyConfig
from eval.latency.report import hardware_line
from eval.latency.shapes import drafter_of, parameters, target_of

SUPPORT = Path(__file__).parents[1] / "support"
EIGHT = AbstractMesh((1, 8), ("data", "model"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "mesh", "groups"), [("tiny", "data=2,model=4", 2), ("mixture", "data=1,model=8", 1)]
)
def test_stages_of_eight_devices(shape, mesh, groups):
    """In both cases some devices have the same head of keys and values."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "sharded_latency.py"), shape, mesh],
        env={**os.environ, "XLA_FLAGS": flags},
        check=True,
        stdout=subprocess.PIPE,
    )
    found = json.loads(done.stdout)
    # What a device holds is what is counted for it, here and by `eval.compile`.
    for what in ("weights", "caches"):
        held, *counted = found[what]
        assert counted == [held] * len(counted)
    shards = 8 // groups
    assert found["made"] == {name: [8, shards, shards] for name in ("o_proj", "drafter")}
    assert found["same trees"]
    assert found["apart"] < 1e-5

    [case] = found["json"]["cases"]
    rows = {row["stage"]: row for row in case["stages"]}
    on_host, on_device = {"to host", "search", "to device"}, {"accept", "draft", "top-k", "pack"}
    assert set(rows) == on_host | on_device | {"plain", "verify", "step", "inside"}
    for name, row in rows.items():
        assert 0 < row["seconds"] < math.inf
        if name in on_host | {"inside"}:
            assert row["limit"] is None
            continue
        # Virtual devices share the machine.
        limit = 8 * max(row["bytes"] / 1e9, row["operations"] / 1e11)
        assert row["limit"] == pytest.approx(limit)
    for name, least in found["least"].items():
        assert [rows[name]["bytes"], rows[name]["operations"]] == least
    text = " ".join(found["text"].split())
    assert f"mesh {mesh}: MB, Gop and limit are those of one device" in text
    assert found["json"]["config"]["mesh"] == mesh
    assert found["json"]["hardware"]["sharers"] == 8


def test_the_memory_of_a_device():
    one, eight = (
        needed_memory("llama-3-8b", jnp.bfloat16, 1, 2048, 60, execution)
        for execution in (Execution(), Execution(mesh=EIGHT))  # pyright: ignore[reportArgumentType]
    )
    # The table of embeddings is whole on each device; so are random bits of it.
    target = target_of("llama-3-8b")
    weights, embeddings = (
        2 * (parameters(target) + parameters(drafter_of(target))),
        2 * 128256 * 4096,
    )
    caches = (2048 + 64) * 2 * (32 + 1) * 8 * 128 * 2
    assert one - eight == pytest.approx((weights - embeddings + caches) * 7 / 8, rel=1e-3)


def test_virtual_devices_share_the_machine():
    whole = Hardware(8e9, 8e12, "float32", 2**20, 512, 8 * 10**9)
    each = whole.shared_by(4)
    assert (each.bandwidth, each.rate, each.memory) == (2e9, 2e12, 2 * 10**9)
    assert hardware_line(each).startswith(hardware_line(whole))
    assert hardware_line(each).endswith(
        "4 virtual devices share this machine: limits are for 1/4 of it"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "model"}, "a mesh is written like data=1,model=4"),
        ({"mesh": "data=2,model=2"}, "2 groups of devices cannot share a batch of 1 evenly"),
        ({"mesh": "model=512"}, "a mesh of data=1,model=512 needs 512 devices; there are"),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        LatencyConfig(("tiny",), **options).execution()


def test_devices_that_cannot_share_a_shape():
    mesh = AbstractMesh((1, 3), ("data", "model"))
    with pytest.raises(UserError, match="3 devices of a mesh cannot share 4 attention heads"):
        needed_memory("tiny", jnp.float32, 1, 20, 8, Execution(mesh=mesh))  # pyright: ignore[reportArgumentType]
