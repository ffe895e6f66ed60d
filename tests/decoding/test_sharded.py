"""Several devices decode as one does, and exchange no more than they must."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny_configs import TARGET

from dart_jax.errors import UserError
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.models.sharding.rules import check_divides

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.long
@pytest.mark.parametrize("weights", ["stored", "int8-channels"])
@pytest.mark.parametrize("mesh", ["data=2,model=4"])
def test_eight_devices_decode_as_one(tmp_path, mesh, weights):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    command = [sys.executable, str(SUPPORT / "sharded_decoding.py"), str(tmp_path)]
    command += ["qwen3", mesh, weights]
    subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, check=True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["same"]) == 36
    assert not [case for case, same in report["same"].items() if not same]
    exchanged = report["exchanged"][f"qwen3 {mesh}"]
    assert len(exchanged.pop("all-reduce")) == 2 * 7  # of seven layers
    # The largest logit of each device and its token, of two rows.
    assert [math.prod(shape) for shape in exchanged.pop("all-gather")] == [4 * 2 * 2]
    assert not exchanged


@pytest.mark.parametrize("text", ["model", "model=0", "rows=2", "model=2,model=2", ""])
def test_a_mesh_that_is_not_one(text):
    with pytest.raises(UserError, match=r"^a mesh is written like data=1,model=4, not "):
        MeshShape.parse(text)


def test_a_mesh_larger_than_the_devices():
    with pytest.raises(UserError, match=r"needs 4096 devices; there are \d+$"):
        MeshShape.parse("model=4096").make()


def test_what_does_not_divide():
    with pytest.raises(UserError, match="3 devices of a mesh cannot share 2 attention heads"):
        check_divides(TARGET, Mock(shape={"data": 1, "model": 3}))
