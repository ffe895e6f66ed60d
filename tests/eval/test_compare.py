"""eval.compare: changes between two reports, and noise."""

import copy
import json

import pytest

from dart_jax.errors import UserError
from eval import compare
from eval.compare import changes, differences, read

EXACT = {"identical": 8, "prompts": 8}
ROW = {"rates": [100.0, 104.0, 102.0], "speedups": [1.5, 1.6, 1.55], "tau": 4.0, **EXACT}
PLAIN = {"rates": [66.0, 65.0, 65.5], "speedups": [1.0, 1.0, 1.0], "tau": 1.0, **EXACT}


@pytest.fixture
def report():
    groups = {name: {"plain": dict(PLAIN), "dart": dict(ROW)} for name in ("text", "all")}
    setting = {
        "bench": "demo",
        "temperature": 0.0,
        "batch_size": 1,
        "trees": {"plain": {"nodes": 0}, "dart": {"nodes": 8}},
        "groups": groups,
    }
    made = {
        "environment": {"jax": "0.10.2"},
        "config": {"repeats": 2, "json": "a.json"},
        "revision": "abc",
        "settings": [setting],
    }
    return copy.deepcopy(made)


def verdicts(before, after, **options):
    return {
        (change.method, change.metric): change.verdict
        for change in changes(before, after, **options)
    }


def test_nothing_changed(report):
    found = verdicts(report, copy.deepcopy(report))
    assert set(found) == {
        ("plain", "tok/s"),
        *(("dart", figure) for figure in ("tok/s", "speed-up", "tau", "identical")),
    }
    assert set(found.values()) == {"same"}
    assert differences(report, report) == []


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ([108.5, 110.0, 112.5], "better"),
        ([104.5, 107.0, 108.0], "same"),  # the gap is smaller than the spread
        ([108.5, 110.0, 114.0], "same"),
        ([103.9, 130.0, 130.0], "same"),  # one repeat within the range before
        ([92.0, 94.0, 95.5], "worse"),
        ([92.0, 94.0, 96.5], "same"),
        ([10.0, 11.0], "too few repeats"),
    ],
)
def test_rates_change_if_the_gap_exceeds_the_spread(report, rates, verdict):
    after = copy.deepcopy(report)
    after["settings"][0]["groups"]["all"]["dart"]["rates"] = rates
    assert verdicts(report, after)["dart", "tok/s"] == verdict


@pytest.mark.parametrize(
    ("figure", "value", "verdict"),
    [("tau", 4.01, "better"), ("tau", 3.99, "worse"), ("identical", 7, "worse")],
)
def test_any_difference_of_a_deterministic_metric_counts(report, figure, value, verdict):
    after = copy.deepcopy(report)
    after["settings"][0]["groups"]["all"]["dart"][figure] = value
    found = verdicts(report, after)
    assert found.pop(("dart", figure)) == verdict
    assert set(found.values()) == {"same"}


def test_groups_are_compared_on_request(report):
    after = copy.deepcopy(report)
    after["settings"][0]["groups"]["text"]["dart"]["tau"] = 3.0
    assert set(verdicts(report, after).values()) == {"same"}
    settings = [change.setting for change in changes(report, after, groups=True)]
    assert "demo, T = 0, batch 1, text" in settings
    assert [c.metric for c in changes(report, after, groups=True) if c.verdict == "worse"] == [
        "tau"
    ]


def test_other_differences_are_listed(report):
    after = copy.deepcopy(report)
    after["environment"]["jax"] = "0.11.2"
    after["config"].update(repeats=3, json="b.json")
    after["revision"] = "def"
    after["settings"][0]["trees"]["dart"] = {"nodes": 16}
    assert differences(report, after) == [
        "jax: 0.10.2 -> 0.11.2",
        "repeats: 2 -> 3",
        "revision: abc -> def",
        "tree of dart, demo, T = 0, batch 1: {'nodes': 8} -> {'nodes': 16}",
    ]


def test_tau_of_different_trees_is_not_judged(report):
    after = copy.deepcopy(report)
    after["settings"][0]["trees"]["dart"] = {"nodes": 16}
    after["settings"][0]["groups"]["all"]["dart"].update(tau=3.0, rates=[50.0, 51.0, 52.0])
    found = verdicts(report, after)
    assert found["dart", "tau"] == "different trees"
    assert found["dart", "identical"] == "same"
    assert found["dart", "tok/s"] == "worse"


def test_the_program(report, tmp_path, capsys):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(report))
    report["settings"][0]["groups"]["all"]["dart"]["tau"] = 5.0
    after.write_text(json.dumps(report))
    compare.main([str(before), str(after)])
    shown = capsys.readouterr().out
    assert "better" in shown
    assert "tau" in shown
    assert "tok/s" not in shown  # it did not change
    assert "1 changed beyond noise" in shown
    compare.main([str(before), str(after), "--all"])
    assert "tok/s" in capsys.readouterr().out
    compare.main([str(before), str(before)])
    shown = capsys.readouterr().out
    assert shown.startswith("nothing changed beyond noise (")
    with pytest.raises(SystemExit) as exit:
        compare.main([str(after), str(before)])
    assert exit.value.code == 1
    assert "worse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not a report of eval.speedup"),
        ('{"groups": 1}', "not a report"),
        # A report of eval.lossless.
        ('{"lossless": true, "settings": [{"method": "dart", "tau": 3.0}]}', "not a report of"),
    ],
)
def test_files_that_are_not_reports(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read(path)


def test_reports_that_have_nothing_in_common(report, tmp_path, capfd):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(report))
    report["settings"][0]["bench"] = "gsm8k"
    after.write_text(json.dumps(report))
    with pytest.raises(SystemExit) as exit:
        compare.main([str(before), str(after)])
    assert exit.value.code == 2
    assert "in common" in capfd.readouterr().err
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path / "none.json")
