"""Many devices, and several processes, compute the same as one device."""

import dataclasses
import shutil
import socket

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from toy_training import PROGRAM, RECIPE, ToyBatches, records, run_together, toy_fit

from dart_jax.errors import UserError
from dart_jax.programs.processes import DistributedConfig, initialize
from train.run.checkpoints import whole_steps
from train.run.mesh import batch_sharding, fsdp_shardings, make_mesh
from train.run.step import load


def assert_close(ours: list[dict], theirs: list[dict]) -> None:
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert our == pytest.approx(their, rel=1e-5)


@pytest.mark.long
def test_eight_devices_train_as_one(tmp_path):
    """In microbatches; and one device goes on with what eight have saved."""
    recipe = dataclasses.replace(RECIPE, batch_size=16, accumulate=2)
    params = toy_fit(tmp_path / "one", recipe)
    options = ["--batch-size", "16", "--accumulate", "2", "--mesh", "data=2,model=4"]
    run_together([*PROGRAM, "--directory", tmp_path / "many", *options], devices=8)
    assert_close(records(tmp_path / "many"), records(tmp_path / "one"))
    shutil.rmtree(tmp_path / "many" / "checkpoints" / "12")
    again = toy_fit(tmp_path / "many", recipe)
    assert_close(records(tmp_path / "many"), records(tmp_path / "one"))
    for name, leaf in params.items():
        np.testing.assert_allclose(again[name], leaf, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_two_processes(tmp_path):
    """They resume a run of one process; then one process resumes theirs."""
    run = tmp_path / "run"
    toy_fit(run)
    alone = records(run)
    for step in (10, 12):
        shutil.rmtree(run / "checkpoints" / str(step))
    told = run_together([*PROGRAM, "--directory", run], processes=2, devices=2)
    # Only one process reports.
    assert "step 12/12" in told[0]
    assert "toy: " not in told[1]
    assert_close(records(run), alone)
    shutil.rmtree(run / "checkpoints" / "12")
    assert whole_steps(run / "checkpoints")[-1] == 10
    toy_fit(run)
    assert_close(records(run), alone)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (DistributedConfig(coordinator="a:1"), "--processes and --process-id go together"),
        (DistributedConfig(True, processes=2), "--processes and --process-id go together"),
        (DistributedConfig(False, "host", 2, 0), "--coordinator host is not of the form host:port"),
        (DistributedConfig(False, "a:1", 2, 2), "--process-id 2 must be from 0 to 1"),
    ],
)
def test_options_of_processes(config, told):
    with pytest.raises(UserError, match=told):
        initialize(config)


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        told = f"^process 0 does not answer at --coordinator {address} within 0 seconds: "
        with pytest.raises(UserError, match=told):
            initialize(DistributedConfig(False, address, 2, 1), timeout=0)


# Where things go


@dataclasses.dataclass(frozen=True)
class Device:
    """The attributes of a device that ordering needs."""

    process_index: int
    id: int


def grid(shape: str | None, processes: int, each: int) -> list[list[int]]:
    """The process at each place of the mesh, for devices in no particular order."""
    devices = [Device(p, each * p + n) for n in range(each) for p in range(processes)]
    mesh = make_mesh(shape, devices)
    assert mesh.axis_names == ("data", "model")
    return [[device.process_index for device in row] for row in mesh.devices]


def test_neighbours_belong_to_one_process():
    assert grid(None, 2, 2) == [[0], [0], [1], [1]]
    assert grid("data=4,model=2", 2, 4) == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert grid("data=2,model=4", 4, 2) == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert grid("data=3", 1, 4) == [[0], [0], [0]]
    with pytest.raises(UserError, match="data=8,model=1 needs 8 devices; there are 4"):
        grid("data=8", 1, 4)
    with pytest.raises(UserError, match="data=2,model=1 leaves processes without a device"):
        grid("data=2", 2, 2)


def test_what_is_trained_is_split_along_its_largest_axis():
    tree = {"a": (64, 128), "b": (129, 64), "c": (127, 129), "small": (64,), "count": ()}
    shapes = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in tree.items()}
    shardings = fsdp_shardings(jax.sharding.AbstractMesh((4, 2), ("data", "model")), shapes)
    assert {name: sharding.spec for name, sharding in shardings.items()} == {
        "a": P(None, "data"),
        "b": P(None, "data"),  # 129 does not divide
        "c": P(None, None),
        "small": P(None),
        "count": P(),
    }


def test_rows_are_read_once_and_in_order():
    asked = []

    class Rows(ToyBatches):
        def __call__(self, step, rows):
            asked.append((step, rows))
            return {"row": np.arange(self.batch)[rows], "none": None}

    sharding = batch_sharding(make_mesh(), 12, 3)
    got = load(Rows(12), 5, sharding, 3)
    assert got["row"].tolist() == np.arange(12).reshape(3, 4).tolist()
    assert got["none"] is None
    assert asked == [(5, slice(0, 4)), (5, slice(4, 8)), (5, slice(8, 12))]
