"""eval.compare: changes between two reports, and noise."""

import copy
import json

import pytest

from eval import compare
from eval.compare import changes, differences

EXACT = {"identical": 8, "prompts": 8}
DART = {"rates": [100.0, 104.0, 102.0], "speedups": [1.5, 1.6, 1.55], "tau": 4.0, **EXACT}
PLAIN = {"rates": [66.0, 65.0, 65.5], "speedups": [1.0, 1.0, 1.0], "tau": 1.0, **EXACT}
REPORT = {
    "environment": {"jax": "0.10.2"},
    "config": {"repeats": 2, "json": "a.json"},
    "revision": "abc",
    "settings": [
        {
            "bench": "demo",
            "temperature": 0.0,
            "batch_size": 1,
            "trees": {"plain": {"nodes": 0}, "dart": {"nodes": 8}},
            "groups": {"all": {"plain": PLAIN, "dart": DART}},
        }
    ],
}


def changed(tree=None, **figures):
    """The report with other figures of DART."""
    report = copy.deepcopy(REPORT)
    report["settings"][0]["groups"]["all"]["dart"].update(figures)
    report["settings"][0]["trees"]["dart"].update(tree or {})
    return report


def verdicts(after):
    """The last word of each figure -> its verdict."""
    return {name.split(": ")[1]: verdict for name, *_, verdict in changes(REPORT, after)}


@pytest.mark.parametrize(
    ("after", "others"),
    [
        (changed(), {}),
        (changed(rates=[108.5, 110.0, 112.5]), {"tok/s": "better"}),
        (changed(rates=[104.5, 107.0, 108.0]), {}),  # the gap is smaller than the spread
        (changed(rates=[92.0, 94.0, 95.5]), {"tok/s": "worse"}),
        (changed(rates=[10.0, 11.0]), {"tok/s": "too few repeats"}),
        (changed(tau=4.01), {"tau": "better"}),
        (changed(tau=3.99, identical=7), {"tau": "worse", "identical": "worse"}),
        (changed(tau=3.0, tree={"nodes": 16}), {"tau": "other trees"}),
        (changed(tau=3.0, tree={"sizes": [0, 8]}), {"tau": "other trees"}),
    ],
)
def test_verdicts(after, others):
    same = dict.fromkeys(("tok/s", "speed-up", "tau", "identical"), "same")
    assert verdicts(after) == same | others


def test_contexts_are_compared_each_with_its_own():
    short, long = copy.deepcopy(REPORT), copy.deepcopy(REPORT)
    short["settings"][0]["context"] = 512
    long["settings"][0]["context"] = 6144
    assert not list(changes(short, long))
    assert not list(changes(REPORT, short))
    assert all("context 512" in name for name, *_ in changes(short, short))


def test_other_differences_are_listed():
    after = {**REPORT, "environment": {"jax": "0.11.2"}, "config": {"repeats": 3, "json": "b.json"}}
    assert differences(REPORT, REPORT) == []
    assert differences(REPORT, after) == ["jax: 0.10.2 -> 0.11.2", "repeats: 2 -> 3"]


def test_the_program(tmp_path, capsys):
    def compared(*reports):
        paths = [tmp_path / f"{n}.json" for n in range(2)]
        for path, report in zip(paths, reports, strict=True):
            path.write_text(json.dumps(report))
        compare.main([*map(str, paths)])

    compared(REPORT, changed(tau=5.0))
    assert "4 same, 1 better" in capsys.readouterr().out
    other, foreign = changed(), {"settings": [{"method": "dart", "tau": 3.0}]}
    other["settings"][0]["bench"] = "gsm8k"
    for reports, status in (
        ((changed(tau=5.0), REPORT), 1),
        ((REPORT, other), 2),
        ((REPORT, foreign), 2),
    ):
        with pytest.raises(SystemExit) as end:
            compared(*reports)
        assert end.value.code == status
    told = capsys.readouterr().err
    assert "in common" in told
    assert "1.json is not a report of speedup" in told
