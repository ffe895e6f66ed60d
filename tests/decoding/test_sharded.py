"""Several devices decode as one does, and exchange no more than they must."""

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys

import jax
import pytest
import sharded_decoding
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from sharded_decoding import Models
from support_process import free_address
from tiny_configs import BLOCK, DART, EAGLE3, TARGET

from dart_jax.errors import UserError
from dart_jax.models.networks.pure import abstract_params
from dart_jax.models.sharding.devices import Devices
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.models.sharding.rules import check_divides, model_specs

PROGRAM = [sys.executable, sharded_decoding.__file__]


def devices(count):
    """The environment of a process with so many devices."""
    flag = f"--xla_force_host_platform_device_count={count}"
    return {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}


def report_of_eight(directory, targets, cases):
    command = [*PROGRAM, str(directory), *targets.split()]
    subprocess.run(command, env=devices(8), check=True)
    report = json.loads((directory / "report.json").read_text())
    assert len(report["same"]) == cases
    assert not [case for case, same in report["same"].items() if not same]
    return report


@pytest.mark.long
@pytest.mark.parametrize(
    ("targets", "cases"),
    [("qwen3", 15), ("qwen3_moe llama int8", 6), ("qwen2_moe olmo2 gemma2", 6)],
)
def test_eight_devices_decode_as_one(tmp_path, targets, cases):
    report = report_of_eight(tmp_path, targets, cases)
    assert max(report["logits"].values()) < 1e-4
    for name, exchanged in report["exchanged"].items():
        devices = int(name[-1])
        rows = 2 if "data=2" in name else 4
        # Two for each of seven layers; OLMo 2 also norms queries and keys over all heads.
        layers = 7 * (4 if "olmo2" in name else 2)
        assert len(exchanged.pop("all-reduce")) == layers, name
        # The largest logit of each device and its token, of a group's rows.
        assert [math.prod(shape) for shape in exchanged.pop("all-gather")] == [devices * 2 * rows]
        assert not exchanged
        # The drafter's too: its projection of features, attention and MLP; and the candidates of
        # each device, 25 for each of four positions.
        exchanged = report["drafting"][name]
        assert len(exchanged.pop("all-reduce")) == layers + 3, name
        sizes = [math.prod(shape) for shape in exchanged.pop("all-gather")]
        candidates = min(25, 320 // devices) * 4
        assert sizes == [devices * 2 * rows * 9, devices * 2 * rows * candidates]
        assert not exchanged
        assert report["split"][name] == 1 / devices


@pytest.mark.long
def test_eight_devices_draft_blocks_as_one(tmp_path):
    """And exchange the sums of a drafter's parts, and each device's likeliest tokens, for each
    position if those of one depend on those before; and for a selector the likeliest of all."""
    report = report_of_eight(tmp_path, "blocks", 10)
    gathers = {"dflash": 1, "whole dflash": 1, "jetspec": 1, "dspark": 5, "dflash2": 6}
    for name, exchanged in report["drafting"].items():
        method, _, mesh = name.partition(", ")
        sums = 2 * 7 + (0 if "whole" in method else 1 + 2 * 2)
        assert len(exchanged.pop("all-reduce")) == sums, name
        sizes = [math.prod(shape) for shape in exchanged.pop("all-gather")]
        assert len(sizes) == 1 + gathers[method], name
        rows = 2 if "data=2" in mesh else 4
        assert max(sizes) <= int(name[-1]) * 2 * rows * 25 * 6
        assert not exchanged


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    Models(directory, "qwen3").write()
    return directory


@pytest.mark.long
def test_two_processes_decode_as_one_device(models):
    """They are connected by loopback; each has four devices, and reads the weights of these."""
    command = [*PROGRAM, str(models), free_address()]
    both = [subprocess.Popen([*command, number], env=devices(4)) for number in "01"]
    assert [process.wait(timeout=500) for process in both] == [0, 0]
    for number, own in enumerate(([0, 1, 2, 3], [4, 5, 6, 7])):
        report = json.loads((models / f"report{number}.json").read_text())
        assert all(report["same"].values()), report["same"]
        # A group of four devices is one process; of eight, both.
        assert report["parts"] == {"data=2,model=4": [0, 1, 2, 3], "model=8": own}


def generate(models, *words) -> subprocess.Popen:
    """Starts the program."""
    command = [sys.executable, "-m", "dart_jax.generate", "def", "--target", str(models / "qwen3")]
    command += ["--max-new-tokens", "6", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes)


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["model=2", "model=3", "model=1"])
def test_two_processes_generate_and_the_first_prints(models, mesh):
    together = ("--mesh", mesh, "--coordinator", free_address(), "--processes", "2")
    both = [generate(models, *together, "--process-id", number) for number in "01"]
    output = [process.communicate(timeout=300) for process in both]
    # Gloo prints how it has connected.
    texts = ["".join(x for x in out.splitlines(True) if "[Gloo]" not in x) for out, _ in output]
    status = [process.returncode for process in both]
    if mesh == "model=2":
        alone = generate(models).communicate(timeout=300)[0]
        assert (status, texts) == ([0, 0], [alone, ""]), output
        assert "6 tokens" in output[0][1]
        assert "tokens" not in output[1][1]
    else:
        why = "needs 3 devices; there are 2" if mesh == "model=3" else "leaves processes without"
        assert status == [2, 2], output
        assert all(err.startswith("error: ") and why in err for _, err in output)


def test_a_mesh_that_is_not_one():
    for text in ("model", "model=0", "rows=2", "model=2,model=2", ""):
        with pytest.raises(UserError, match=r"^a mesh is written like data=1,model=4, not "):
            MeshShape.parse(text)
    with pytest.raises(UserError, match=r"needs 4096 devices; there are \d+$"):
        MeshShape.parse("model=4096").make()


CONFIGS = {"target": TARGET, "dart": DART, "eagle3": EAGLE3, "block": BLOCK}
WHOLE = {"embed_tokens", "pairs", "attention_conv", "mlp_conv"}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_matrix_is_split(config, fused):
    params = abstract_params(config, fused)
    specs = model_specs(config, params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        spec = functools.reduce(lambda tree, key: tree[key.key], path, specs)
        # All rows of tables are needed everywhere, and what convolves them is small.
        names = {key.key for key in path}
        split = leaf.ndim > 1 and names.isdisjoint(WHOLE)
        assert (spec != P()) == split, path


def test_what_does_not_divide():
    three, four = (AbstractMesh((1, count), ("data", "model")) for count in (3, 4))
    with pytest.raises(UserError, match="3 devices of a mesh cannot share 2 attention heads"):
        check_divides(TARGET, three)
    # A drafter that cannot be split stays whole.
    devices = Devices(four)
    assert not devices.with_drafter(DART).split_drafter
    even = dataclasses.replace(DART, draft_vocab_size=60)
    assert devices.with_drafter(even).split_drafter
    assert not devices.with_drafter(TARGET).split_drafter
