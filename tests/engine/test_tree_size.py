"""Trees are as large as pays, by what steps cost and what is accepted."""

import json
from pathlib import Path

import numpy as np
import pytest

from dart_jax.decoding.drafting import PromptLookupConfig
from dart_jax.engine.tree_size import (
    BURST,
    TRIAL,
    CostFiles,
    StepCosts,
    TreeSizes,
    on_lines,
)
from dart_jax.errors import UserError
from dart_jax.generation.defaults import adaptive_tree, default_tree
from dart_jax.model import DartModel

SIZES = (0, 2, 4, 8)


# Knowledge.


def test_costs_are_compared_in_the_same_moment():
    """A machine that is busy for a while slows down all sizes alike."""
    costs = StepCosts()
    for size, busy in [(8, 1), (0, 1), (8, 1), (8, 5), (0, 5), (8, 5), (0, 5), (8, 2)]:
        costs.learn(size, busy * {0: 1.0, 8: 2.0}[size])
    assert costs.known[8] / costs.known[0] == pytest.approx(2)


def test_unknown_costs_are_on_a_line_through_known_ones():
    costs = on_lines({0: 1.0, 4: 2.0, 8: 4.0}, (0, 2, 4, 6, 8, 16))
    assert costs == {0: 1.0, 2: 1.5, 4: 2.0, 6: 3.0, 8: 4.0, 16: 8.0}


# Choices.

GOOD = [0.8, 0.6, 0.5, 0.4, 0.1, 0.05, 0.05, 0.05]
BAD = [0.2, 0.1, 0.05, 0.05, 0.01, 0.01, 0.01, 0.01]
COSTS = {0: 1, 2: 1.5, 4: 1.7, 8: 2.4}


def policy(costs=None, tmp_path=None):
    files = None
    if costs:
        files = CostFiles(Path(tmp_path))
        files.keep(("p", 1, "greedy"), costs)
    return TreeSizes({1: SIZES}, first=8, files=files, program="p")


def decoded(sizes, rates, costs=COSTS, tokens=80_000, noise=0.0, rows=1, limit=64):
    """Lets a policy decode on a machine with these costs, where the r-th node of a tree is accepted
    in a share rates[r - 1] of the steps; returns what it ran: (size, tokens, seconds)."""
    bursts, done, rng = [], 0, np.random.default_rng(0)
    while done < tokens:
        state = sizes.choose(rows, "greedy")
        steps = min(state.left, limit)
        counts = rng.binomial(steps, rates[: state.size])
        ranks = np.arange(1, state.size + 1).repeat(counts)
        seconds = steps * costs[state.size] * np.exp(noise * rng.normal())
        sizes.learn(rows, "greedy", state.size, ranks, steps, steps, seconds)
        new = steps + len(ranks)
        bursts.append((state.size, new, steps * costs[state.size]))
        done += new
    return bursts


def rate(bursts):
    _, tokens, seconds = np.array(bursts).sum(axis=0)
    return tokens / seconds


@pytest.mark.parametrize("noise", [0, 0.1])
@pytest.mark.parametrize("limit", [1, 64])
def test_the_size_that_pays_best_is_found(noise, limit):
    """Within 5 % of the best fixed size, in bursts of many steps or of one."""
    best = max((1 + sum(GOOD[:size])) / cost for size, cost in COSTS.items())
    bursts = decoded(policy(), GOOD, noise=noise, limit=limit)
    assert rate(bursts) > 0.95 * best
    assert {size for size, *_ in bursts[-len(bursts) // 2 :]} == {0, 2, 4, 8}  # all are tried


def test_a_cost_that_was_disturbed_is_measured_again(tmp_path):
    sizes = policy(COSTS | {4: 3 * COSTS[4]}, tmp_path)
    bursts = decoded(sizes, GOOD)
    assert 4 not in {size for size, *_ in bursts[:20]}
    assert [size for size, *_ in bursts[-100:]].count(4) > 85


def test_where_drafts_do_not_pay_little_is_lost():
    bursts = decoded(policy(), BAD)
    assert rate(bursts) > 0.98
    assert 0 < sum(size > 0 for size, *_ in bursts[-1500:]) <= 16  # it is tried again


def test_what_begins_to_pay_is_found_again():
    sizes = policy()
    decoded(sizes, BAD, tokens=8_000)
    bursts = decoded(sizes, GOOD, tokens=40_000)
    assert [size for size, *_ in bursts[-100:]].count(4) > 85


def test_numbers_of_rows_and_levels_are_judged_apart():
    sizes = TreeSizes({1: SIZES, 16: (0, 1, 2)})
    decoded(sizes, GOOD, tokens=20_000)
    decoded(sizes, BAD, {0: 1, 1: 2, 2: 3}, rows=16, tokens=20_000)
    assert sizes.choose(1, "greedy").size == 4
    assert not sizes.drafts(16, "greedy")
    assert sizes.drafts(16, "sampled")  # nothing is known of it


def test_a_short_text_runs_one_size():
    sizes = policy()
    assert {size for size, *_ in decoded(sizes, GOOD, tokens=100)} == {8}


def test_bursts_are_short_where_costs_are_unknown(tmp_path):
    assert policy().choose(1, "greedy").left == TRIAL
    assert policy(COSTS, tmp_path).choose(1, "greedy").left == BURST


def test_times_with_compilation_teach_nothing():
    sizes = policy()
    for _ in range(20):
        state = sizes.choose(1, "greedy")
        nothing = np.zeros(0, int)
        sizes.learn(1, "greedy", state.size, nothing, state.left, state.left, None)
    assert sizes._kinds[1, "greedy"].costs.known == {}


@pytest.mark.parametrize("nodes", [0, 5])
def test_a_fixed_size(nodes):
    sizes = TreeSizes({1: (0, nodes) if nodes else (0,)}, fixed=True)
    assert {size for size, *_ in decoded(sizes, 8 * [0], {0: 1, 5: 9}, tokens=999)} == {nodes}
    assert sizes.drafts(1, "greedy") == (nodes > 0)


def test_a_tour_visits_every_size():
    sizes = policy()
    sizes.tour(1)
    bursts = []
    while sizes.touring:
        bursts += decoded(sizes, GOOD, tokens=1)
    assert {size for size, *_ in bursts} == set(SIZES)
    decoded(sizes, GOOD, tokens=200)
    known = sizes._kinds[1, "greedy"].costs.known
    assert {size: known[size] / known[0] for size in SIZES} == pytest.approx(COSTS)


@pytest.mark.long
def test_what_is_prepared_knows_all_costs():
    decoder = DartModel.demo().decoder(nodes=2, max_length=128, sizes=(0, 2))
    prompt = np.arange(1, 9)
    decoder.prepare([prompt], 60)
    (sizes,) = decoder.memory._policies.values()
    assert set(sizes._kinds[1, "greedy"].costs.known) == {0, 2}
    assert sum(decoder([prompt], 60).seconds[stage] for stage in ("compile",)) == 0


def test_costs_are_kept_between_processes(tmp_path):
    decoded(policy(COSTS, tmp_path), GOOD)
    known = CostFiles(tmp_path).read(("p", 1, "greedy"))
    assert {size: known[size] / known[0] for size in known} == pytest.approx(COSTS, rel=0.2)
    assert CostFiles(tmp_path).read(("p", 2, "greedy")) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"0": -1}', '{"0": NaN}', "null"])
def test_damaged_costs_are_learned_again(tmp_path, text):
    files = CostFiles(tmp_path)
    files.keep("p", {0: 1.0})
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert CostFiles(tmp_path).read("p") == {}
    files = CostFiles(tmp_path)
    files.read("p")
    files.keep("p", {0: 2.0})
    assert json.loads(path.read_text()) == {"0": 2.0}


def test_where_nothing_can_be_written_costs_are_learned_anew(tmp_path, caplog):
    directory = tmp_path / "file"
    directory.write_text("")
    CostFiles(directory).keep("p", {0: 1.0})
    assert "the costs of draft trees are not kept" in caplog.text


@pytest.mark.parametrize("sizes", [(1, 8), (0, 4), (0, 8, 4), (0, 4, 4, 8), (0,)])
def test_sizes_out_of_order(sizes):
    with pytest.raises(UserError, match="sizes must ascend from 0 and include 8 nodes"):
        DartModel.demo().decoder(nodes=8, max_length=128, sizes=sizes)


@pytest.mark.parametrize("batch", [1, 64])
def test_sizes_to_choose_from(models, batch):
    for drafter in (models.drafter, models.eagle, models.target, PromptLookupConfig()):
        sizes, _ = adaptive_tree(drafter, batch)
        nodes, _ = default_tree(drafter, batch)
        assert sizes[0] == 0
        assert nodes in sizes[1:]
        assert [*sizes] == sorted(set(sizes))
