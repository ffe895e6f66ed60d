"""The memory of the objective."""

import io

from rich.console import Console

from train.measure import MeasureConfig, run


def test_memory_grows_with_the_context():
    sizes = {"hidden_size": 64, "intermediate_size": 48, "vocab_size": 50}
    file = io.StringIO()
    run(MeasureConfig(context=(12, 24), positions=(3,), **sizes), Console(file=file))
    rows = [line.split("│") for line in file.getvalue().splitlines() if "│" in line]
    (one, two) = ([float(cell) for cell in row[1:4]] for row in rows)
    assert one[:2] + two[:2] == [12, 3, 24, 3]
    assert 0 < one[2] < two[2]
