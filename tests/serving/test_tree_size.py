"""Trees are as large as pays, by what steps cost and what is accepted."""

import numpy as np
import pytest

from dart_jax.engine.costs import StepCosts
from dart_jax.engine.tree_size import TreeSizes

SIZES = {1: (0, 2, 4, 8), 16: (0, 1, 2)}
FLAT = {0: 1.0, 2: 1.01, 4: 1.02, 8: 1.03}


def made(costs, sizes=SIZES):
    made = TreeSizes(sizes, fixed=False)
    for (rows, level), seconds in costs.items():
        for size, cost in seconds.items():
            made.learn_cost(rows, level, size, cost)
    return made


def most_often(sizes, rows, level="greedy", steps=120):
    """After as many steps in which it may still change."""
    chosen = [sizes.choose(rows, level) for _ in range(2 * steps)][steps:]
    return max(set(chosen), key=chosen.count)


def accept(sizes, ranks, size=8, steps=100, level="greedy"):
    for _ in range(steps):
        sizes.learn_accepted(level, size, np.array(ranks), 1, 1)


def test_what_pays():
    sizes = made({(1, "greedy"): FLAT, (16, "greedy"): {0: 1.0, 1: 2.1, 2: 3.2}})
    assert most_often(sizes, 1) == 8
    assert most_often(sizes, 16) == 0
    accept(sizes, [1, 2])  # the others never
    # 0.3 % more for 2 nodes that are worth nothing is too much, but not for a guess of 3 %.
    assert most_often(sizes, 1) == 2


def test_levels_are_judged_apart():
    sizes = made({(1, level): FLAT for level in ("greedy", "sampled")})
    accept(sizes, [0], level="sampled")
    assert most_often(sizes, 1, "sampled") == 0
    assert most_often(sizes, 1, "greedy") == 8


def test_drafting_begins_again_after_a_while():
    sizes = made({(1, "greedy"): FLAT, (16, "greedy"): {0: 1.0, 1: 9.0, 2: 9.0}})
    assert most_often(sizes, 16) == 0
    again = [sizes.choose(1, "greedy") for _ in range(30)]
    assert again[:10] == [0] * 10
    assert again[-1] == 8
    # A short pause between two bursts of load is not worth it.
    assert most_often(sizes, 16) == 0
    assert [sizes.choose(1, "greedy"), sizes.choose(16, "greedy")] == [0, 0]


def test_larger_trees_are_tried():
    """What the nodes of larger trees are worth is only known if some are verified."""
    sizes = made({(1, "greedy"): {0: 1.0, 2: 1.5, 4: 2.4, 8: 9.0}})
    chosen = [sizes.choose(1, "greedy") for _ in range(240)]
    assert max(set(chosen), key=chosen.count) == 2
    assert 0 < chosen.count(4) < 24


def test_one_bad_draft_proves_nothing_and_many_are_forgotten():
    sizes = made({(1, "greedy"): {0: 1.0, 2: 1.8, 4: 2.4, 8: 3.6}})
    assert sizes.choose(1, "greedy") > 0
    accept(sizes, [0], size=4, steps=1)
    assert sizes.choose(1, "greedy") > 0
    tries = 0
    for _ in range(3):  # nothing is ever accepted
        steps = 0
        while sizes.choose(1, "greedy"):
            accept(sizes, [0], size=8, steps=1)
            steps += 1
        assert 0 < steps < 60
        plain = 1
        while not sizes.choose(1, "greedy"):
            plain += 1
            assert plain < 40_000
        assert plain > 3 * tries  # it is tried again, but less and less often
        tries = plain
    for _ in range(100):  # then all is
        size = sizes.choose(1, "greedy")
        accept(sizes, [*range(1, size + 1)], size=size, steps=1)
    assert size == 8


@pytest.mark.parametrize("nodes", [0, 5])
def test_a_fixed_size(nodes):
    sizes = TreeSizes({1: (0, nodes) if nodes else (0,)}, fixed=True)
    sizes.learn_cost(1, "greedy", nodes, 1.0)
    assert most_often(sizes, 1) == nodes


def test_nothing_is_known_without_a_warm_up():
    assert TreeSizes(SIZES, fixed=False).choose(16, "greedy") == 2


def observe(sizes, rows, size, seconds, steps=10, level="greedy"):
    for _ in range(steps):
        sizes.learn_step(rows, level, size, seconds)


def test_what_steps_take_beside_others_counts():
    """Trees that seemed to pay while nothing else ran are given up where they take longer."""
    sizes = made({(1, "greedy"): {0: 1.0, 2: 1.2}}, sizes={1: (0, 2)})
    assert most_often(sizes, 1) == 2
    observe(sizes, 1, 2, 1.3)
    assert most_often(sizes, 1) == 2  # plain steps are believed to be as much slower
    observe(sizes, 1, 0, 1.0)
    observe(sizes, 1, 2, 2.5, steps=1000)
    assert most_often(sizes, 1) == 0


def test_plain_steps_are_tried_where_it_is_not_clear():
    sizes = made({(1, "greedy"): {0: 1.0, 2: 1.8}}, sizes={1: (0, 2)})
    chosen = []
    for _ in range(600):
        chosen.append(sizes.choose(1, "greedy"))
        observe(sizes, 1, chosen[-1], 1.8 if chosen[-1] else 0.5, steps=1)
    assert chosen[0] == 2
    assert chosen[-200:] == [0] * 200  # they are faster than was measured
    sizes = made({(1, "greedy"): {0: 1.0, 2: 1.2}}, sizes={1: (0, 2)})
    assert most_often(sizes, 1, steps=600) == 2
    assert 0 not in [sizes.choose(1, "greedy") for _ in range(600)]  # here it is clear


def test_costs_of_sizes_that_do_not_run_follow_those_that_do():
    costs = StepCosts()
    for size, seconds in FLAT.items():
        costs.measure(1, "greedy", size, seconds)
    assert costs.of(1, "greedy") == FLAT
    for _ in range(8):
        costs.observe(1, "greedy", 2, 2.02)
    assert costs.of(1, "greedy") == {size: 2 * seconds for size, seconds in FLAT.items()}
    assert costs.is_observed(1, "greedy", 2)
    assert not costs.is_observed(1, "greedy", 4)
    assert costs.of(2, "greedy") == {}
    costs.forget(drafted=False)
    assert costs.is_observed(1, "greedy", 2)
    costs.forget(drafted=True)
    assert not costs.is_observed(1, "greedy", 2)
