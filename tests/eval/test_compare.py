"""eval.compare: changes between two reports, and noise."""

import copy
import json

import pytest

from dart_jax.errors import UserError
from eval import compare
from eval.compare import changes, differences, read

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
    return {each.figure.split(": ")[1]: each.verdict for each in changes(REPORT, after)}


@pytest.mark.parametrize(
    ("after", "others"),
    [
        (changed(), {}),
        (changed(rates=[108.5, 110.0, 112.5]), {"tok/s": "better"}),
        (changed(rates=[104.5, 107.0, 108.0]), {}),  # the gap is smaller than the spread
        (changed(rates=[108.5, 110.0, 114.0]), {}),
        (changed(rates=[92.0, 94.0, 95.5]), {"tok/s": "worse"}),
        (changed(rates=[10.0, 11.0]), {"tok/s": "too few repeats"}),
        (changed(tau=4.01), {"tau": "better"}),
        (changed(tau=3.99, identical=7), {"tau": "worse", "identical": "worse"}),
        (changed(tau=3.0, tree={"nodes": 16}), {"tau": "other trees"}),
    ],
)
def test_verdicts(after, others):
    same = dict.fromkeys(("tok/s", "speed-up", "tau", "identical"), "same")
    assert verdicts(after) == same | others


def test_trees_that_change_have_another_tau_every_time():
    before, after = (changed(tau=tau, tree={"sizes": [0, 8]}) for tau in (3.0, 4.0))
    assert {each.verdict for each in changes(before, after)} == {"same", "other trees"}


def test_other_differences_are_listed():
    after = {**REPORT, "environment": {"jax": "0.11.2"}, "config": {"repeats": 3, "json": "b.json"}}
    assert differences(REPORT, REPORT) == []
    assert differences(REPORT, after) == ["jax: 0.10.2 -> 0.11.2", "repeats: 2 -> 3"]


def test_the_program(tmp_path, capsys):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(REPORT))
    after.write_text(json.dumps(changed(tau=5.0)))
    compare.main([str(before), str(after)])
    assert "4 same, 1 better" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        compare.main([str(after), str(before)])
    assert end.value.code == 1
    other = changed()
    other["settings"][0]["bench"] = "gsm8k"
    after.write_text(json.dumps(other))
    with pytest.raises(SystemExit) as end:
        compare.main([str(before), str(after)])
    assert end.value.code == 2
    assert "in common" in capsys.readouterr().err


def test_reports_of_other_programs_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"settings": [{"method": "dart", "tau": 3.0}]}')
    with pytest.raises(UserError, match=r"not a report of eval\.speedup"):
        read(tmp_path / "a.json")
