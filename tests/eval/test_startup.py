"""`python -m eval.startup`: new processes, with a cold and a warm cache."""

import json

import pytest

from eval.startup import main


@pytest.mark.long
def test_the_report(tmp_path, capsys):
    path = tmp_path / "startup.json"
    options = ["--model", "demo", "--max-new-tokens", "8", "--repeats", "1", "--json", str(path)]
    main(options)
    report = json.loads(path.read_text())
    (warm,) = report["warm"]
    printed = capsys.readouterr().out
    assert warm.keys() == report["cold"].keys()
    assert all(name in printed for name in warm)
    # Which is sooner, a busy machine may turn round.
    for name in ("first text", "the server is ready"):
        assert min(warm[name], report["cold"][name]) > 0
