"""The cost of the objective."""

import dataclasses
import io

import pytest
from rich.console import Console

from train.measure import MeasureConfig, measure, run


@pytest.mark.long
def test_time_and_memory():
    config = MeasureConfig(
        context=(12,),
        positions=(3,),
        hidden_size=64,
        intermediate_size=48,
        vocab_size=50,
    )
    memory, seconds = measure(config, 12, 3)
    assert len(seconds) == 5
    assert min(seconds) > 0
    # With --compile-only nothing is run, and the memory is the same.
    config = dataclasses.replace(config, compile_only=True)
    assert measure(config, 12, 3) == (memory, [])
    assert measure(config, 24, 3)[0] > memory
    file = io.StringIO()
    run(config, Console(file=file))
    assert "12 │ 3 │ - │" in file.getvalue()
