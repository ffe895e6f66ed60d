"""eval.loading: a process reads its share of a checkpoint, and little beyond it."""

import io

import pytest
from rich.console import Console

from eval.loading import LoadingConfig, run


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_reads_its_share(processes):
    printed = io.StringIO()
    measurements = run(LoadingConfig("300MB", processes=processes), Console(file=printed))
    assert len(measurements) == processes
    for each in measurements:
        # Tied embeddings are 22 % of the model, and every process has them whole.
        assert 240e6 / processes < each.share < 1.3 * 360e6 / processes
        assert each.peak - each.before - each.share - each.tensor < 300e6
        assert f"{each.share / 1e6:,.0f}" in printed.getvalue()
