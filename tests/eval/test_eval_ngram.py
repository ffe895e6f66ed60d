"""eval.scripts.ngram: its figures, and the drafts that it searches."""

import json

import numpy as np

from dart_jax.model import DEMO
from dart_jax.ngram import NgramModel
from eval.scripts.ngram import main, make_drafts


def test_the_report(tmp_path, capsys):
    path = tmp_path / "ngram.json"
    main(["--queries", "100", "--tree-nodes", "8", "--json", str(path)])
    report, file = json.loads(path.read_text()), DEMO / "ngram.dng"
    assert report["ngrams"] == sum(NgramModel.load(file).sizes)
    assert report["bytes"] == file.stat().st_size
    names = ("search, median", "search, 99th percentile")
    median, slow = (report["seconds"][name] for name in names)
    assert 0 < median < slow < 0.1
    assert f"{1e6 * median:,.1f} us" in capsys.readouterr().out


def test_drafts_hold_the_text():
    """The token that follows is among the candidates, most often in front."""
    tokens = np.tile(np.arange(40, dtype=np.int32), 50)
    context, ids, logits = make_drafts(
        NgramModel.count([tokens]), tokens, 300, np.random.default_rng(0)
    )
    following = (context[:, -1:] + np.arange(1, 9)) % 40
    assert (ids == following[..., None]).any(axis=-1).all()
    assert (ids[:, 0, 0] == following[:, 0]).mean() > 0.5
    assert (np.diff(logits) <= 0).all()
