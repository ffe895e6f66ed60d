"""eval.latency: costs, timing and reports."""

import dataclasses
import functools
import io
import json
import statistics
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.decoding.step import step
from dart_jax.errors import UserError
from dart_jax.models.config import MoEConfig
from dart_jax.models.cpu.tiles import unpack
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.platform.execution import Execution
from dart_jax.models.pure import abstract_params
from eval.latency import case as latency_case
from eval.latency import clock as latency_clock
from eval.latency import hardware
from eval.latency import program as latency
from eval.latency import report as latency_report
from eval.latency import stages as latency_stages
from eval.latency.case import Case, Model, Row
from eval.latency.clock import Stage, Times, Timing, calls_in, measure
from eval.latency.cost import Cost, CostModel
from eval.latency.derived import contradiction, derive, outliers, read_tau_by_nodes
from eval.latency.hardware import Hardware
from eval.latency.program import LatencyConfig, run
from eval.latency.shapes import QWEN3, drafter_of, parameters, random_params, target_of

CONTEXT, NODES = 20, 12
FEW = 4  # nodes of trees too small for all positions
TAUS = {FEW: 1.2, NODES: 3.5}
SLOW = Hardware(1e9, 1e11, "float32", 2**20, 512, 2**40)


@pytest.fixture(scope="module")
def model():
    return Model.random("tiny", jnp.float32)


# Shapes.

PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
}


@pytest.mark.long(keep=3)
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name):
    assert parameters(target_of(name)) == PUBLISHED[name]


def test_parameters_match_the_model(model):
    for config, params in (
        (target_of("tiny"), model.params["target"]),
        (model.drafter, model.params["drafter"]),
    ):
        own = sum(leaf.size for leaf in jax.tree.leaves(params))
        if config is not model.drafter:  # on CPU its head is untied
            own -= (model.target != config) * config.vocab_size * config.hidden_size
        assert parameters(config) == own


def test_names():
    assert target_of("Qwen3-8B") == target_of("qwen3-8b")
    assert target_of("demo").vocab_size == 4096
    assert set(QWEN3) < set(PUBLISHED)
    with pytest.raises(UserError, match="no shape 'gpt'; pass one of demo, qwen3"):
        target_of("gpt")


def test_random_parameters_have_the_given_dtype():
    params = random_params(drafter_of(target_of("tiny")), 1, jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    tiles = params["mlp"]["gate_up_proj"]["kernel"]
    gate, up = np.split(np.asarray(unpack(tiles, tiles.shape[1], 2 * 96), np.float32), 2, axis=1)
    assert up.std() == pytest.approx(0.02, rel=0.05)
    assert (gate != up).mean() > 0.9
    assert (np.asarray(params["norm"]["scale"], np.float32) == 1).all()


# Costs.

# D 64, F 96, L 7, H 4, K 2, h 16, V 512; d 8, of which 7 are mask rows.
COSTS = CostModel(target_of("tiny"), drafter_of(target_of("tiny")), 1, 100, 4, 25)
LAYER = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96  # q; k and v; o; gate, up and down
DRAFT_LAYER = 128 * 64 + 2 * 128 * 32 + 64 * 64 + 3 * 64 * 96
CACHED = 7 * 2 * 2 * 16 * 4  # bytes of a row: layers, keys and values, heads, size, float32


def test_bytes_and_operations_by_hand():
    weights = 7 * (LAYER + 2 * 64 + 2 * 16) + 64 + 64 * 512
    features = 3 * 64 * 4
    plain = COSTS.plain()
    assert plain.bytes == 4 * (weights + 64) + CACHED * 101
    # Each head: scores and sums over 101 keys of 16 numbers.
    assert plain.operations == 2 * (7 * LAYER + 64 * 512 + 7 * 4 * 2 * 16 * 101)
    verify = COSTS.verify(61)
    logits = 61 * 512 * 4
    assert verify.bytes == 4 * (weights + 61 * 64) + CACHED * 161 + logits + 61 * features
    assert verify.operations == 61 * 2 * (7 * LAYER + 64 * 512 + 7 * 4 * 2 * 16 * 161)
    assert COSTS.accept(61, 9) == (logits + 3 * 61 * 4 + 2 * 9 * (CACHED + features), 0)

    drafter = 192 * 64 + DRAFT_LAYER + 6 * 64 + 64 * 512
    row, draft_logits = 2 * 2 * 16 * 4, 8 * 512 * 4
    draft = COSTS.draft(9)
    rows = 9 * 64 * 4 + 9 * features + row * 109
    assert draft.bytes == 4 * drafter + rows + draft_logits
    products = 9 * 192 * 64  # features
    products += 10 * 128 * 64 + 2 * 128 * 64  # keys and values of 10 rows, queries of 2
    products += 8 * (64 * 64 + 3 * 64 * 96) + 4 * 2 * 16 * 8 * 116 + 8 * 64 * 512
    assert draft.operations == 2 * products
    candidates = 8 * 25 * 8
    assert COSTS.topk(9) == (draft_logits + candidates, 0)
    assert COSTS.pack(9) == (2 * 9 * row + 2 * candidates, 0)

    step = COSTS.step(61, 9)
    assert step.operations == verify.operations + draft.operations
    kept = 4 * (weights + 61 * 64) + CACHED * 109
    assert step.bytes == kept + 4 * drafter + 9 * 64 * 4 + row * 109 + candidates


def test_an_eagle3_step_by_hand():
    drafter, tree = Eagle3Config.for_target(COSTS.target), Eagle3Tree(depth=3, top_k=5)
    layer = DRAFT_LAYER + 4 * 64
    row = 2 * 2 * 16  # numbers in a row's keys and values
    # Paths of 5 rows: the root and 4 levels, of which 3 are passes over 5 rows.
    verified = COSTS.step(21, 5).bytes - COSTS.draft(5).bytes - 4 * 25 * 8
    verified += 5 * 3 * 64 * 4 + 4 * 512 * 4  # features and logits do not cross the memory
    passes = 3 * 64 * 64 + 4 * (layer + 64 * 512) + 4 * row * 105 + 5 * 64 + 3 * 5 * 64
    step = COSTS.eagle3_step(drafter, tree, 20)
    assert step.bytes == verified + 4 * passes + 3 * 4 * 21
    keys = 128 * 64  # of a row
    seen = 2 * 64 * 105
    products = 5 * (192 * 64 + keys) + DRAFT_LAYER - keys + 64 * 512 + seen
    products += 3 * 5 * (DRAFT_LAYER + 64 * 512 + seen) + 5 * 2 * 64 * (1 + 2 + 3)
    assert step.operations == COSTS.verify(21).operations + 2 * products
    # Fewer nodes than a level has rows, and than there are levels.
    assert COSTS.eagle3_step(drafter, tree, 2).bytes < COSTS.eagle3_step(drafter, tree, 3).bytes


def test_weights_match_the_parameters():
    target, drafter = COSTS.target, COSTS.drafter
    assert COSTS.target_weights(1) == parameters(target)  # a tied head is read as a head
    assert COSTS.drafter_weights == parameters(drafter)
    untied = dataclasses.replace(target, tie_word_embeddings=False)
    assert dataclasses.replace(COSTS, target=untied).target_weights(1) == parameters(target)
    for name in ("qwen3-8b", "llama-3-8b"):
        config = target_of(name)
        costs = CostModel(config, drafter_of(config), 1, 1, 2, 25)
        embeddings = config.vocab_size * config.hidden_size
        assert costs.target_weights(61) == parameters(config) - embeddings
        assert costs.drafter_weights == parameters(drafter_of(config))


def test_batches_share_only_weights():
    many = dataclasses.replace(COSTS, batch=3)
    weights = 4 * COSTS.target_weights(1)
    for one, three in [(COSTS.verify(9), many.verify(9)), (COSTS.plain(), many.plain())]:
        assert three.bytes - weights == 3 * (one.bytes - weights)
        assert three.operations == 3 * one.operations


def test_a_mixture_reads_the_experts_that_rows_reach():
    moe = MoEConfig(4, 2, 32, norm_topk_prob=True, shared_intermediate_size=16)
    target = dataclasses.replace(target_of("tiny"), moe=moe)
    costs = dataclasses.replace(COSTS, target=target)
    assert [costs.reached_experts(rows) for rows in (1, 2, 100)] == [2, 3, pytest.approx(4)]
    assert costs.target_weights(100) == parameters(target)
    expert = 3 * 64 * 32
    assert costs.target_weights(2) - costs.target_weights(1) == 7 * expert
    products = costs.plain().operations - COSTS.plain().operations
    assert products == 2 * 7 * (2 * expert + 3 * 64 * 16 + 64 * 4 + 64 - 3 * 64 * 96)


def test_the_limit_is_the_slower_resource():
    assert Cost(2000, 10).limit(1000, 1000) == 2
    assert Cost(20, 3000).limit(1000, 1000) == 3


def compiled_flops(function, *arguments):
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    assert analysis is not None
    return analysis["flops"]


@pytest.fixture(scope="module")
def state(model):
    """The state after a prompt, and a tree of the search."""
    config = DecodeConfig(model.target, model.drafter, NODES)
    state, candidates = latency_case.prefilled_state(config, model.params, 2, CONTEXT)
    packed = latency_case.pack_host_buffer(config.host_buffer, *candidates)
    return config, state, jnp.asarray(HostSearch(config.host_buffer, NODES)(packed))


def test_operations_against_the_compilers(model, state):
    """The compiler also counts activations, norms and masked cache rows."""
    config, state, trees = state
    small = latency_stages.without_caches(state)
    capacity = state.target_cache[0][0].shape[2]
    costs = CostModel(model.target, model.drafter, 2, capacity, 4, config.host_buffer.candidates)
    # It does not know what the C++ core computes.
    config = dataclasses.replace(config, execution=Execution())
    params = {**model.params, "target": abstract_params(model.target)}
    arguments = ((params, state.target_cache), (small, trees), ())
    flops = compiled_flops(partial(latency_stages.verify_stage, config), *arguments)
    assert 1 <= flops / costs.verify(NODES + 1).operations < 1.3


# Timing.


def test_the_stages_are_the_step(model, state):
    config, state, trees = state
    # Both consume the state.
    first, second = (jax.tree.map(jnp.copy, state) for _ in range(2))
    actual_state, packed = latency_stages.all_stages(config, model.params, first, trees)
    expected_state, expected = step(config, model.params, second, trees)
    pruner = HostSearch(config.host_buffer, NODES)
    np.testing.assert_array_equal(pruner(np.asarray(packed)), pruner(np.asarray(expected)))
    first = config.host_buffer.first + config.host_buffer.positions * config.host_buffer.candidates
    np.testing.assert_array_equal(packed[:, :first], expected[:, :first])
    for leaf, other in zip(
        jax.tree.leaves(actual_state), jax.tree.leaves(expected_state), strict=True
    ):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-5)


def test_random_rows_have_the_prefills_shapes(model, state):
    config, state, _ = state
    other, given = latency_case.random_state(config, model.params, 2, CONTEXT)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (state, other))
    assert shapes[0] == shapes[1]
    packed = latency_case.pack_host_buffer(config.host_buffer, *given)
    context, ids, logits = config.host_buffer.candidates_of(packed)
    for mine, theirs in zip((context, ids, logits), given, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert all(len(set(level)) == len(level) for row in ids.tolist() for level in row)
    assert (np.diff(logits, axis=-1) <= 0).all()
    tree = HostSearch(config.host_buffer, NODES)(packed)
    assert (tree[:, 2, 1:] > 0).all()


def test_every_call_of_the_loop_is_made():
    """The donated array counts them; the inputs are unchanged."""
    timing = Timing(repeats=2, seconds=1e-5)

    def count(fixed, inputs, donated):
        return donated + fixed, (inputs[0] * 2, inputs[1])

    inputs = (jnp.arange(3.0), jnp.arange(4, dtype=jnp.int32))
    stage = Stage(count, jnp.float32(1), inputs, jnp.zeros((2,)), calls=5)
    times, donated, outputs = measure(stage, timing)
    assert donated.tolist() == [15, 15]  # once to compile
    assert outputs[0].tolist() == [0, 2, 4]
    assert outputs[1].tolist() == [0, 1, 2, 3]
    assert (len(times.device), times.wall, times.calls) == (2, [], 5)
    stage = dataclasses.replace(stage, donated=jnp.zeros(2), calls=None)
    times, donated, _ = measure(stage, timing)
    assert donated[0] == 3 + times.calls * 3 + 2 * 3
    assert len(times.wall) == 2


def test_nothing_is_hoisted_out_of_the_loop():
    """A matmul inside the loop stays inside."""

    def product(fixed, inputs, donated):
        return donated, inputs @ fixed

    square = jnp.ones((64, 64))
    lowered = latency_clock._looped_calls.lower(product, 7, square, square, ())
    text = lowered.compile().as_text()
    assert text is not None
    products = [part for part in text.split("\n\n") if " dot(" in part or "custom-call" in part]
    assert products
    assert not any(part.lstrip().startswith("ENTRY") for part in products)


def test_calls():
    assert calls_in(1, 0.01) == 128
    assert calls_in(1, 5) == 2
    assert calls_in(1, 1e-9) == 1024


def test_quartiles():
    assert Times([3.0, 1.0, 2.0], [9.0]).quartiles == (1.5, 2.5)
    assert Times([], [9.0]).quartiles == (9.0, 9.0)
    assert Times([3.0, 1.0, 2.0], [9.0]).seconds == 2


@pytest.mark.long
def test_hardware():
    measured = hardware.measure(jnp.float32, copied=2**20)
    assert min(measured.bandwidth, measured.rate, measured.memory) > 0
    assert (measured.copied, measured.dtype) == (2**20, "float32")


# Derived results.


def case_of(times):
    """Returns a case from (stage, nodes) -> milliseconds."""
    rows = [
        Row(stage, nodes, Times([ms / 1e3], [ms / 1e3]), Cost(10**6, 0))
        for (stage, nodes), ms in times.items()
    ]
    return Case("tiny", 64, 128, 1, True, False, rows)


CASE = case_of(
    {
        ("plain", None): 2,
        ("verify", 8): 2.2,
        ("accept", 8): 0.1,
        ("draft", None): 0.4,
        ("top-k", None): 0.1,
        ("pack", None): 0.1,
        ("step", 8): 2.8,
        ("to host", 8): 0.05,
        ("search", 8): 0.1,
        ("to device", 8): 0.05,
        ("verify", 60): 3,
        ("accept", 60): 0.2,
        ("step", 60): 3.6,
        ("to host", 60): 0.3,
        ("search", 60): 0.1,
        ("to device", 60): 0.1,
    }
)


def test_speedups():
    derived = derive(CASE, (3.0,))
    small, large = derived.trees
    assert (small.nodes, large.nodes) == (8, 60)
    assert small.verify == pytest.approx(1.1)
    assert small.step == pytest.approx(1.4)
    assert small.parts == pytest.approx(2.9e-3)
    assert large.parts == pytest.approx(3.8e-3)
    assert small.total == pytest.approx(3e-3)
    assert small.speedup[3.0] == pytest.approx(3 * 2 / 3)
    assert large.speedup[3.0] == pytest.approx(3 * 2 / 4.1)
    assert (derived.best, derived.best_speedup) == (8, None)
    given = derive(CASE, (3.0,), {8: 2.0, 60: 4.0, 128: 9.0})
    assert given.best == 60
    assert given.best_speedup == pytest.approx(4 * 2 / 4.1)


def test_the_total_includes_the_dispatch_of_a_step():
    """A loop that calls the host waits for every step's dispatch."""
    rows = [
        dataclasses.replace(row, times=Times(row.times.device, [3.8e-3]))
        if (row.stage, row.nodes) == ("step", 8)
        else row
        for row in CASE.rows
    ]
    small, _ = derive(dataclasses.replace(CASE, rows=rows), (3.0,)).trees
    assert small.step == pytest.approx(1.4)
    assert small.total == pytest.approx(4e-3)


def test_small_trees_have_their_own_rows():
    """All larger trees share one row, whichever was measured first."""
    case = case_of({("draft", None): 4, ("step", 60): 1, ("draft", 4): 2, ("step", 4): 1})
    assert case.find("draft", 4).times.seconds == 2e-3
    assert case.find("draft", 60).times.seconds == 4e-3
    assert LatencyConfig(tree_nodes=(60, 4)).filled().tree_nodes == (4, 60)


def test_numbers_are_short():
    shown = [latency_report._ratio(value) for value in (0.256, 1.234, 45.67, 1099.4)]
    assert shown == ["0.26", "1.23", "45.7", "1,099"]
    assert [latency_report._ms(value) for value in (5e-6, 1.234e-3, 0.1)] == [
        "0.005",
        "1.23",
        "100",
    ]


def test_outliers():
    found = outliers(CASE, derive(CASE, (3.0,)), SLOW)  # every limit is 1 ms
    assert found == [
        "tiny, context 64: a plain step takes 2.00x its limit (goal: 1.3x)",
        "tiny, context 64: the step with 8 nodes takes 2.80x its limit (goal: 1.3x)",
        "tiny, context 64: the step with 60 nodes takes 3.60x its limit (goal: 1.3x)",
        "tiny, context 64: verifying 60 nodes takes 1.50x a plain step (goal: 1.2x)",
        "tiny, context 64: host copies with 60 nodes take 0.40 ms (goal: 0.3 ms)",
    ]
    fast = outliers(CASE, derive(CASE, (3.0,)), SLOW._replace(bandwidth=3e8))
    assert fast[0].startswith(
        "tiny, context 64: a plain step takes 0.60x its limit: the weights fit"
    )
    fine = case_of(
        {
            key: 1.0 if key[0] in ("plain", "step", "verify") else 0.1
            for key in [(row.stage, row.nodes) for row in CASE.rows]
        }
    )
    assert outliers(fine, derive(fine, (3.0,)), SLOW) == []


# The program.


@functools.cache
def report(directory):
    """Runs it once."""
    taus = directory / "taus.json"
    taus.write_text(json.dumps(TAUS))
    config = LatencyConfig(
        shape=("Tiny", "qwen3-8b"),
        context=(CONTEXT, 50_000),
        tree_nodes=(FEW, NODES),
        batch_size=2,
        repeats=2,
        seconds=1e-3,
        tau=(2.0, 3.0),
        tau_by_nodes=taus,
        json=directory / "out" / "latency.json",
        markdown=directory / "latency.md",
        plot=directory / "latency.png",
    )
    file = io.StringIO()
    run(config, Console(file=file, width=100))
    made = json.loads((directory / "out" / "latency.json").read_text())
    return file.getvalue(), made, (directory / "latency.md").read_text()


@pytest.fixture
def reported(tmp_path_factory, monkeypatch):
    """What it printed, its JSON and its Markdown; on a machine with little memory."""
    monkeypatch.setattr(hardware, "measure", lambda dtype: SLOW._replace(memory=10**9))
    monkeypatch.setattr(latency, "contradiction", lambda case: None)  # other tests may run
    return report(tmp_path_factory.getbasetemp())


@pytest.mark.long
def test_report(reported):
    text, content, markdown = reported
    assert [case["context"] for case in content["cases"]] == [CONTEXT]
    assert [case["prefilled"] for case in content["cases"]] == [True]
    for case in content["cases"]:
        rows = {(row["stage"], row["nodes"]): row for row in case["stages"]}
        assert len(rows) == len(case["stages"])
        by_nodes = {"verify", "accept", "step", "to host", "search", "to device", "inside"}
        whole = {(name, None) for name in ("plain", "draft", "top-k", "pack")}
        whole |= {(name, FEW) for name in ("draft", "top-k", "pack")}
        assert set(rows) == whole | {(name, n) for name in by_nodes for n in (FEW, NODES)}
        for (stage, _), row in rows.items():
            assert row["quartiles"][0] <= row["seconds"] <= row["quartiles"][1]
            on_host = stage in ("to host", "search", "to device")
            assert len(row["wall"]) == (0 if stage == "verify" else 2)
            assert len(row["device"]) == (0 if on_host else 2)
            assert (row["limit"] is None) == (on_host or stage == "inside")
            if row["limit"] is not None:
                limit = max(row["bytes"] / 1e9, row["operations"] / 1e11)
                assert row["limit"] == pytest.approx(limit)
                assert row["ratio"] == pytest.approx(row["seconds"] / limit)
                assert f"| {latency_report._ratio(row['ratio'])} |" in markdown
        plain = rows["plain", None]["seconds"]
        for tree in case["trees"]:
            host = [rows[name, tree["nodes"]]["seconds"] for name in ("to host", "search")]
            host.append(rows["to device", tree["nodes"]]["seconds"])
            total = statistics.median(rows["step", tree["nodes"]]["wall"]) + sum(host)
            assert tree["total"] == pytest.approx(total)
            assert tree["speedup"]["3.0"] == pytest.approx(3 * plain / total)
            for shown in (text, markdown):
                assert f"{tree['speedup']['3.0']:.2f}x" in shown
        speedups = {t["nodes"]: TAUS[t["nodes"]] * plain / t["total"] for t in case["trees"]}
        assert case["best_speedup"] == pytest.approx(max(speedups.values()))
        assert case["best_speedup"] == pytest.approx(speedups[case["best_nodes"]])
    assert content["environment"]["device"] in text.replace("\n", "")
    assert content["config"]["dtype"] == "float32"
    for line in content["stands_out"]:
        assert f"outlier: {line}" in text
        assert line in markdown


@pytest.mark.long
def test_what_was_left_out(reported):
    text, content, markdown = reported
    [large, long, both] = content["left_out"]
    assert large.startswith(f"qwen3-8b, context {CONTEXT}: left out, it needs about 40.")
    assert large.endswith("GB, and the device has 1.0 GB")
    assert long.startswith(
        "tiny, context 50000: left out, it leaves no room for a step within 40960 positions"
    )
    assert both.startswith("qwen3-8b, context 50000: left out, it leaves no room")
    for line in content["left_out"]:
        assert line in text
        assert line in markdown


@pytest.mark.long
def test_figure(reported, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "latency.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_memory_that_is_needed():
    """The largest shape: 64 GB in bfloat16, which must fit on one GPU."""
    needed = latency_case.needed_memory("qwen3-32b", jnp.bfloat16, 1, 1024, 256)
    weights = 2 * (PUBLISHED["qwen3-32b"] + parameters(drafter_of(target_of("qwen3-32b"))))
    if jax.default_backend() == "cpu":  # its head is already untied
        assert weights < needed < weights + 6e9
    long = latency_case.needed_memory("qwen3-32b", jnp.bfloat16, 1, 32768, 256)
    assert long - needed > 2 * 64 * 2 * 8 * 128 * (32768 - 1024) - 2e9


def test_the_time_limit(monkeypatch):
    monkeypatch.setattr(hardware, "measure", lambda dtype: SLOW)
    monkeypatch.setattr(latency.Latency, "out_of_time", lambda self: True)
    config = LatencyConfig(shape=("tiny",), minutes=5)
    with pytest.raises(UserError, match="nothing was measured: tiny, context 128: left out, since"):
        run(config, Console(file=io.StringIO()))


def test_a_stage_longer_than_its_step_is_not_reported(monkeypatch, tmp_path):
    times = {(row.stage, row.nodes): 1e3 * row.times.seconds for row in CASE.rows}
    assert contradiction(CASE) is None
    assert contradiction(case_of(times | {("verify", 8): 2.8})) is None
    busy = case_of(times | {("verify", 60): 4.0})
    said = "verify with 60 nodes took 4 ms and the step that contains it 3.6 ms; measure again"
    assert contradiction(busy).startswith(said)
    monkeypatch.setattr(hardware, "measure", lambda dtype: SLOW)
    monkeypatch.setattr(latency.Model, "random", lambda *_: None)
    monkeypatch.setattr(latency, "run_case", lambda *_: busy)
    config = LatencyConfig(shape=("tiny",), context=(128,), json=tmp_path / "a.json")
    with pytest.raises(
        UserError, match=f"nothing was measured: tiny, context 128: left out, {said}"
    ):
        run(config, Console(file=io.StringIO()))
    assert list(tmp_path.iterdir()) == []


BAD = {
    "shape": (["--shape", "gpt2"], "no shape 'gpt2'"),
    "context": (["--context", "0"], "--context must be at least 1"),
    "nodes": (["--tree-nodes", "8", "0"], "--tree-nodes must be at least 1"),
    "the same nodes": (["--tree-nodes", "8", "8"], "--tree-nodes must be different numbers"),
    "batch": (["--batch-size", "0"], "--batch-size must be at least 1"),
    "repeats": (["--repeats", "0"], "--repeats must be at least 1"),
    "seconds": (["--seconds", "0"], "--seconds must be a positive number"),
    "tau": (["--tau", "0.5"], "--tau must be numbers of at least 1"),
    "minutes": (["--minutes", "-1"], "--minutes must be a positive number"),
    "plot": (["--plot", "figure.txt"], "--plot writes .png, .pdf or .svg"),
    "no file": (["--tau-by-nodes", "nowhere.json"], "cannot read nowhere.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, capsys):
    arguments, message = BAD[case]
    with pytest.raises(SystemExit) as exit:
        latency.main(arguments)
    stderr = capsys.readouterr().err
    assert exit.value.code == 2
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert message in stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold taus by nodes"),
        ('{"8": "x"}', "must hold taus by nodes"),
        ('{"8": 0.5}', "has a tau of 1..N \\+ 1"),
        ('{"8": 9.5}', "has a tau of 1..N \\+ 1"),
        ('{"16": 2}', "has taus for 16 nodes, none of which are in --tree-nodes"),
        ("{}", "has taus for no nodes"),
    ],
)
def test_bad_taus(tmp_path, content, message):
    path = tmp_path / "taus.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_tau_by_nodes(path, (8, 60))


def test_help_lists_all_options(capsys):
    with pytest.raises(SystemExit) as exit:
        latency.main(["--help"])
    assert exit.value.code == 0
    stdout = capsys.readouterr().out
    for field in dataclasses.fields(LatencyConfig):
        assert f"--{field.name.replace('_', '-')}" in stdout
