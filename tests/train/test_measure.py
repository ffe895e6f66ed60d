"""The memory of the objective."""

import io

from rich.console import Console
from tiny_configs import TARGET, random_params

from dart_jax.weights.checkpoint import save_target
from train.recipes.measure import MeasureConfig, run


def test_memory_grows_with_the_context(tmp_path):
    save_target(tmp_path, TARGET, random_params(TARGET, 0))
    file = io.StringIO()
    run(MeasureConfig(str(tmp_path), context=(12, 24), positions=(3,)), Console(file=file))
    rows = [line.split("|") for line in file.getvalue().splitlines() if "|" in line]
    (one, two) = ([float(cell) for cell in row[1:4]] for row in rows[2:])
    assert one[:2] + two[:2] == [12, 3, 24, 3]
    assert 0 < one[2] < two[2]
