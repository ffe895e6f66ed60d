"""eval.search: real candidates, and the same trees in every way."""

import json

import numpy as np
import pytest

from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from eval.search import main, measure

LAYOUT = HostBuffer(3, 5)


@pytest.mark.long
def test_the_report(tmp_path, capsys):
    path = tmp_path / "search.json"
    sizes = ["--tree-nodes", "6", "--batch-size", "1", "3", "--prompts", "1"]
    rest = ["--repeats", "2", "--max-new-tokens", "12", "--json", str(path)]
    main(["--model", "demo", *sizes, *rest])
    seconds = json.loads(path.read_text())["seconds"]
    assert set(seconds) == {"1", "3"}
    for ways in seconds.values():
        assert set(ways) == {"host", "device"}
        assert all(len(values) == 2 and 0 < min(values) < 1 for values in ways.values())
    assert "device / host" in capsys.readouterr().out


def test_different_trees_end_the_measurement():
    rng = np.random.default_rng(0)
    ids, logits = rng.integers(0, 50, (8, 15)), rng.normal(0, 1, (8, 15)).astype(np.float32)
    before = rng.integers(0, 50, (8, CONTEXT))
    rows = np.concatenate([before, ids, logits.view(np.int32)], axis=1).astype(np.int32)
    same = {"one": HostSearch(LAYOUT, 6), "other": DeviceSearch(LAYOUT, 6)}
    assert measure(same, rows, 4, 1).keys() == same.keys()
    other = SearchConfig(level_decay=3.0, logit_decay=0.2)
    with pytest.raises(RuntimeError, match="different trees"):
        measure({**same, "other": DeviceSearch(LAYOUT, 6, search=other)}, rows, 4, 1)
