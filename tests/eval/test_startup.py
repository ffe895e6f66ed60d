"""`python -m eval.scripts.startup`: new processes, with a cold and a warm cache."""

import json

import pytest

from eval.scripts.startup import main


@pytest.mark.long
def test_the_report(tmp_path, capsys, monkeypatch):
    """A warm start compiles nothing."""
    # Otherwise the cache keeps only what took some time to compile, which may differ.
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    path = tmp_path / "startup.json"
    options = ["--model", "demo", "--max-new-tokens", "8", "--repeats", "1", "--json", str(path)]
    main(options)
    report = json.loads(path.read_text())
    (warm,) = report["warm"]
    printed = capsys.readouterr().out
    assert warm.keys() == report["cold"].keys()
    assert all(name in printed for name in warm)
    name = "programs compiled for the first text"
    assert report["cold"][name] > warm[name] == 0
