"""Trees are as large as pays, by what steps cost and what is accepted."""

import numpy as np
import pytest

from dart_jax.decoding.drafting import PromptLookupConfig
from dart_jax.decoding.paying import BINS, Lessons, nodes_that_pay
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Request
from dart_jax.engine.shapes import default_tree, tree_sizes
from dart_jax.engine.step_costs import PLAIN, Known, path_for
from dart_jax.engine.tree_size import TreeSizes

SIZES = (0, 2, 4, 8)

GOOD = [0.8, 0.6, 0.5, 0.4, 0.1, 0.05, 0.05, 0.05]
BAD = [0.2, 0.1, 0.05, 0.05, 0.01, 0.01, 0.01, 0.01]
COSTS = {0: 1, 2: 1.5, 4: 1.7, 8: 2.4}


def policy(sizes=SIZES, directory=None, **options):
    return TreeSizes({1: sizes}, first=8, directory=directory, program="p", **options)


def known_in(directory):
    return Known.read(path_for(directory, ("p", 1, "greedy")))


def write(directory, costs):
    """Another process's knowledge."""
    costs = {size or PLAIN: float(cost) for size, cost in costs.items()}
    Known(costs, np.zeros((BINS, 2))).write(path_for(directory, ("p", 1, "greedy")))


def decoded(sizes, rates, costs=COSTS, tokens=80_000, noise=0.0, rows=1, limit=64):
    """Lets a policy decode on a machine with these costs, where the r-th node of a tree is accepted
    in a share rates[r - 1] of the steps; returns what it ran: (size, tokens, seconds)."""
    bursts, done, rng = [], 0, np.random.default_rng(0)
    while done < tokens:
        state = sizes.choose(rows, "greedy")
        steps = min(state.left, limit)
        expected = np.array([1.0, *rates[: state.size]]) * steps
        lessons = Lessons(np.zeros((BINS, 2)), expected) if state.size else None
        seconds = steps * costs[state.size] * np.exp(noise * rng.normal())
        sizes.learn(rows, "greedy", state.size, steps, lessons, seconds)
        bursts.append((state.size, expected.sum(), steps * costs[state.size]))
        done += expected.sum()
    return bursts


def rate(bursts):
    _, tokens, seconds = np.array(bursts).sum(axis=0)
    return tokens / seconds


@pytest.mark.parametrize(("limit", "noise"), [(64, 0), (64, 0.1), (1, 0.1)])
def test_the_size_that_pays_best_is_found(limit, noise):
    """Within 5 % of the best fixed size, in bursts of many steps or of one."""
    best = max((1 + sum(GOOD[:size])) / cost for size, cost in COSTS.items())
    bursts = decoded(policy(), GOOD, tokens=30_000, noise=noise, limit=limit)
    assert rate(bursts) > 0.95 * best


def test_where_drafts_do_not_pay_little_is_lost():
    """They are tried again, and taken when they begin to pay."""
    sizes = policy()
    bursts = decoded(sizes, BAD)
    assert rate(bursts) > 0.98
    assert 0 < sum(size > 0 for size, *_ in bursts[-1500:]) <= 20
    sizes = policy()
    decoded(sizes, BAD, tokens=8_000)
    bursts = decoded(sizes, GOOD, tokens=40_000)
    assert [size for size, *_ in bursts[-100:]].count(0) < 15


def test_numbers_of_rows_and_modes_are_judged_apart():
    sizes = TreeSizes({1: SIZES, 16: (0, 1, 2)})
    decoded(sizes, GOOD, tokens=20_000)
    decoded(sizes, BAD, {0: 1, 1: 2, 2: 3}, rows=16, tokens=20_000)
    assert sizes.choose(1, "greedy").size == 4
    assert not sizes.drafts(16, "greedy")
    assert sizes.drafts(16, "sampled")  # nothing is known of it


def test_a_short_text_has_no_plain_steps():
    assert 0 not in {size for size, *_ in decoded(policy(), GOOD, tokens=100)}


def test_knowledge_is_kept_between_processes(tmp_path, caplog):
    decoded(policy(directory=tmp_path), GOOD)
    costs = known_in(tmp_path).costs
    assert costs[4] / costs[PLAIN] == pytest.approx(COSTS[4], rel=0.2)
    [path] = tmp_path.iterdir()
    for text in ("{", "[]", '{"a": 1}', '{"costs": {"0": -1}, "outcomes": []}', "null"):
        path.write_text(text)
        assert known_in(tmp_path).costs == {}
    write(tmp_path, {0: 1, 8: 2, 99: 3})  # of a size that there is not
    decoded(policy(directory=tmp_path), GOOD)  # it is learned again
    assert known_in(tmp_path).costs.keys() == costs.keys()
    decoded(policy(directory=path), GOOD, tokens=2_000)  # where nothing can be written
    assert "the costs of draft trees are not kept" in caplog.text


def test_a_wrong_cost_of_plain_decoding_is_soon_replaced(tmp_path):
    write(tmp_path, {0: 1.8, 2: 1.3, 4: 1.5, 8: 1.9})
    sizes = policy((0, 8), tmp_path, stepwise=True)
    stepwise_steps(sizes, RATES, lambda n: 1.0 if n == PLAIN else 1.1 + 0.1 * n, 1500)
    assert known_in(tmp_path).costs[PLAIN] < 1.5


@pytest.mark.parametrize("slope", [0.02, 1.0])
def test_wrong_costs_of_nodes_are_soon_replaced(tmp_path, slope):
    """As of a process on a machine that was busy in another way."""
    sizes, speeds = (0, 4, 8, 16), []
    cost = lambda n: 1.0 if n == PLAIN else 1.15 + 0.18 * n  # noqa: E731
    for known in (lambda n: 1.0 if n == PLAIN else 1.15 + slope * n, cost):
        write(tmp_path, {0: 1.0, **{n: known(n) for n in range(1, 17)}})
        learning = policy(sizes, tmp_path, stepwise=True)
        stepwise_steps(learning, RATES, cost, 500)
        tokens, seconds = stepwise_steps(learning, RATES, cost, 1500, seed=1)
        speeds.append(tokens / seconds)
    assert speeds[0] > 0.97 * speeds[1]


def test_times_with_compilation_teach_nothing():
    sizes = policy()
    for _ in range(20):
        state = sizes.choose(1, "greedy")
        sizes.learn(1, "greedy", state.size, state.left, None, None)
    assert sizes._kinds[1, "greedy"].costs.known == {}


@pytest.mark.parametrize("nodes", [0, 5])
def test_a_fixed_size(nodes):
    sizes = TreeSizes({1: (0, nodes) if nodes else (0,)}, fixed=True)
    assert sizes.choose(1, "greedy").paying is None
    assert {size for size, *_ in decoded(sizes, 8 * [0], {0: 1, 5: 9}, tokens=999)} == {nodes}
    assert sizes.drafts(1, "greedy") == (nodes > 0)


# Steps that decide themselves.


def stepwise_steps(sizes, rates, cost, steps, seed=0, noise=0.1):
    """Lets steps of one row verify chains, of which each node is accepted with a probability that
    its bin has; returns emitted tokens and their seconds on an idle machine."""
    rng, tokens, seconds = np.random.default_rng(seed), 0, 0.0
    while steps > 0:
        state = sizes.choose(1, "greedy")
        count, busy = min(state.left, steps), np.exp(0.1 * rng.normal())
        outcomes, times, at = np.zeros((BINS, 2), int), np.zeros((count, 2), np.uint32), 0.0
        expected = np.zeros(state.size + 1)
        for turn in range(count):
            nodes, accepted = PLAIN, 0
            if state.size:
                bins = np.sort(rng.integers(0, 8, state.size))
                paths = np.cumprod(state.paying.rates[bins])
                number = state.paying.numbers[turn % len(state.paying.numbers)]
                nodes = number if number >= 0 else nodes_that_pay(paths, state.paying.costs)
                expected[: nodes + 1] += np.array([1, *paths[:nodes]])
                for each in bins[:nodes]:
                    hit = rng.random() < rates[each]
                    outcomes[each] += (1, hit)
                    if not hit:
                        break
                    accepted += 1
            idle = 1e-3 * cost(nodes)
            at += idle * busy * np.exp(noise * rng.normal())
            tokens, seconds = tokens + 1 + accepted, seconds + idle
            times[turn] = round(1e6 * at), max(nodes, 0)
        lessons = Lessons(outcomes, expected) if state.size else None
        sizes.learn(1, "greedy", state.size, count, lessons, at, times)
        steps -= count
    return tokens, seconds


RATES = np.linspace(0.95, 0.2, 8)


def test_steps_are_faster_than_any_fixed_number_of_nodes():
    """And not slower than plain ones where no node pays."""

    def cost(nodes):
        return 1.0 if nodes == PLAIN else 1.1 + 0.15 * nodes

    tokens, seconds = stepwise_steps(policy((0, 8), stepwise=True), RATES, cost, 6000, noise=0)
    fixed, rng = np.zeros(9), np.random.default_rng(0)
    for _ in range(3000):
        bins = np.sort(rng.integers(0, 8, 8))
        fixed += 1 + np.array([0, *np.cumsum(np.cumprod(RATES[bins]))])
    fixed /= 3000 * np.array([cost(nodes) for nodes in range(9)])
    assert tokens / seconds > 0.97e3 * max(1, fixed.max())
    # What plain decoding takes is known from few bursts, of a machine that is more or less busy.
    bad = [
        stepwise_steps(policy((0, 8), stepwise=True), 0.05 * RATES, cost, 20_000, seed)
        for seed in range(6)
    ]
    tokens, seconds = np.sum(bad, axis=0)
    assert tokens / seconds > 0.97e3


def test_trees_of_one_program():
    """It has plain steps, too."""
    sizes = TreeSizes({1: (8,)}, stepwise=True)
    tokens, seconds = stepwise_steps(sizes, RATES, lambda n: 1.1 + 0.15 * n, 500)
    assert tokens / seconds > 1.5e3


def test_costs_that_no_line_describes_are_found(tmp_path):
    """As of products whose first rows are nearly free; what a machine that did something else took
    is not believed."""

    def cost(nodes):
        return 1.0 if nodes == PLAIN else float(np.interp(nodes, [0, 4, 8], [1.05, 1.2, 3.0]))

    sizes = policy((0, 8), tmp_path, stepwise=True)
    stepwise_steps(sizes, RATES, cost, 3000)
    sizes.learn(1, "greedy", 8, 2, None, 1.0, np.array([[0, 8], [900_000, 8]], np.uint32))
    stepwise_steps(sizes, RATES, cost, 1000)
    costs = known_in(tmp_path).costs
    for nodes in (4, 8):
        assert costs[nodes] / costs[PLAIN] == pytest.approx(cost(nodes), rel=0.2)


def test_steps_that_decide_themselves_are_not_called_for_few(tmp_path):
    write(tmp_path, COSTS)
    sizes, times = policy(directory=tmp_path, stepwise=True), np.zeros((2, 2), np.uint32)
    for left in (0, 5):  # all of the first ones, which are timed, then nearly all
        state = sizes.choose(1, "greedy")
        sizes.learn(1, "greedy", state.size, state.left - left, None, None, times)
    assert sizes.choose(1, "greedy").left >= 64


@pytest.mark.long
def test_a_tour_visits_all_sizes(demo):
    """Then nothing is left to be compiled."""
    options = EngineConfig(slots=1, max_length=128, offline=True)
    engine, request = demo.engine(options), Request(np.arange(1, 9, dtype=np.int32), 60)
    engine.tree_sizes.tour(1, "greedy")
    while engine.tree_sizes.touring:
        engine.run([request])
    other = demo.engine(options)
    assert other.tree_sizes is engine.tree_sizes
    other.run([request])
    assert other.seconds["compile"] == 0


@pytest.mark.parametrize("rows", [1, 3, 64, 1000])
def test_sizes_to_choose_from(models, rows):
    for drafter in (models.drafter, models.eagle, models.target, PromptLookupConfig()):
        sizes = tree_sizes(drafter, rows)
        assert sizes[0] == 0 < sizes[1]
        assert [*sizes] == sorted(set(sizes))
        assert sizes[-1] <= 2 * default_tree(drafter, rows)[0]
        assert rows == 1 or rows * sizes[-1] <= max(16, rows)
