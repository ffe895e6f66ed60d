"""`eval.search`: real candidates, the same trees in every way, and tables of several sizes."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.device import DeviceSearch
from dart_jax.decoding.search.host import HostSearch
from eval.search.drafts import batches
from eval.search.program import main
from eval.search.ways import measure_ways

LAYOUT = HostBuffer(3, 5, 4)


def packed(rows):
    rng = np.random.default_rng(0)
    ids, logits = rng.integers(0, 50, (rows, 15)), rng.normal(0, 1, (rows, 15))
    before = rng.integers(0, 50, (rows, LAYOUT.first))
    return np.concatenate([before, ids, logits.astype(np.float32).view(np.int32)], axis=1).astype(
        np.int32
    )


@pytest.mark.long
def test_the_report(tmp_path, capsys):
    report, tables = tmp_path / "search.json", tmp_path / "search.md"
    sizes = ["--tree-nodes", "6", "--batch-size", "1", "3", "--prompts", "1", "--seconds", "0.01"]
    parts = ["--model", "demo", "--shares", "1", "0.1", "0"]
    rest = ["--rounds", "2", "--max-new-tokens", "12", "--json", report, "--markdown", tables]
    main([*sizes, *parts, *map(str, rest)])
    printed, found = capsys.readouterr().out, json.loads(report.read_text())
    assert set(found["ways"]) == {"1", "3"}
    assert set(found["ways"]["3"]) >= {"native, 1 core", "native", "callback", "device"}
    assert all(0 < way["median"] < 1 for ways in found["ways"].values() for way in ways.values())
    whole, tenth, none = found["sizes"]
    assert whole["table"]["ngrams"] == whole["table"]["total"] > 10**6
    assert tenth["table"]["ngrams"] == pytest.approx(whole["table"]["total"] / 10, rel=0.01)
    assert none["table"]["ngrams"] == 0
    assert min(whole["tau"], none["tau"]) > 1
    assert all(size["identical"] == 4 for size in found["sizes"])
    assert "| batch |" in tables.read_text()
    assert "n-gram tables on the device" in printed
    assert "device over native, 1 core" in tables.read_text()


def test_every_batch_has_rows_of_its_own():
    rows = np.arange(40)[:, None]
    made = batches(rows, 7, seed=0)
    assert made.shape == (10, 7, 1)
    assert all(len(set(batch.ravel().tolist())) >= 6 for batch in made)
    assert set(made.ravel().tolist()) == set(range(40))


def test_different_trees_end_the_measurement():
    other = SearchConfig(level_decay=3.0, logit_decay=0.2)
    searches = {"one": HostSearch(LAYOUT, 6), "other": DeviceSearch(LAYOUT, 6, search=other)}
    data = np.asarray(jnp.asarray(packed(8))).reshape(2, 4, -1)
    with pytest.raises(RuntimeError, match="different trees"):
        measure_ways(searches, data, 0.01, 1)
