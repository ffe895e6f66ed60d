"""eval.compile for several devices: what they exchange, what fits, and what is predicted."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh

from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from eval.compile.cases import Case
from eval.compile.check import Limits, violations
from eval.compile.collectives import Collective, Total, collectives, with_layers
from eval.compile.devices import ACCELERATORS
from eval.compile.hlo import read_module
from eval.compile.prediction import Room, Setting
from eval.compile.program import CompileConfig
from eval.compile.report import exchanges, prediction, room
from eval.compile.summary import Summary
from eval.latency.cost import Cost
from eval.latency.shapes import drafter_of, parameters, target_of

SUPPORT = Path(__file__).parents[1] / "support"
V5E = ACCELERATORS["v5e"]


def summary_of(shape, shards=1, batch=1, nodes=8, layers=None, found=(), **settings):
    """A step's, of which only the exchanges and 1 MB of temporary memory are known."""
    method = "dart" if nodes else "plain"
    case = Case(shape, method, nodes, batch, 2048, 16, layers=layers, **settings)
    if shards > 1:
        case = case.on(AbstractMesh((1, shards), ("data", "model")))
    least = case.least("step")
    return Summary(case, "step", 1.0, [], None, 0, 0, 10**6, 0, 0, least, list(found))


def layers_of(count, size, sums=2):
    return [Collective("all-reduce", size, 1, i) for i in range(count) for _ in range(sums)]


HEAD = Collective("all-gather", 4 * 2 * 9 * 4, 1, None)

# As XLA prints exchanges for GPUs and TPUs: in one instruction, in two, in a loop and in a fusion.
EXCHANGES = """HloModule jit_step

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %sum = f32[8]{0} all-reduce(%x), to_apply=%add, metadata={op_name="jit(f)/layer_3/mlp/psum"}
  ROOT %t = (s32[], f32[8]) tuple(%x, %sum)
}

%scattered (p: bf16[16]) -> bf16[4] {
  %p = bf16[16]{0} parameter(0)
  ROOT %part = bf16[4]{0} reduce-scatter(%p), to_apply=%add
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = bf16[1,8,64]{2,1,0} parameter(0)
  %start = bf16[1,8,64]{2,1,0} all-reduce-start(%x), metadata={op_name="verify/layer_12/o/psum"}
  %done = bf16[1,8,64]{2,1,0} all-reduce-done(%start)
  %begin = (s32[1,2,8]{2,1,0}, s32[8,2,8]{2,1,0}) all-gather-start(%i), dimensions={0}
  %end = s32[8,2,8]{2,1,0} all-gather-done(%begin)
  %moved = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%y)
  %on_chip = s32[16]{0:T(128)S(1)} all-reduce(%z), to_apply=%add
  %fused = bf16[4]{0} fusion(%x), kind=kCustom, calls=%scattered
  ROOT %w = (s32[], f32[8]) while(%t), body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_exchanges_in_a_program():
    assert collectives(read_module(EXCHANGES)) == [
        Collective("all-reduce", 2 * 8 * 64, 1, 12),
        Collective("all-gather", 4 * 8 * 2 * 8, 1, None),
        Collective("collective-permute", 16, 1, None),
        Collective("all-reduce", 64, 1, None),
        Collective("reduce-scatter", 8, 1, None),
        Collective("all-reduce", 32, 5, 3),
    ]


# The order in which a TPU's program runs: prefetches of weights are under way during exchanges. One
# goes on during both, one ends before the second, one leaves the chip.
PREFETCHES = """HloModule jit_step, is_scheduled=true

ENTRY %main (w: s8[64,64]) -> f32[8] {
  %w = s8[64,64]{1,0} parameter(0)
  %x = f32[8]{0:T(128)S(1)} parameter(1)
  %a = (s8[64,64]{1,0:T(8,128)S(1)}, s8[64,64]{1,0}, u32[]{:S(2)}) copy-start(%w)
  %b = ((s8[64,64]{1,0}), s8[16,64]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%w), slice={[0:16]}
  %c = (f32[8]{0:T(128)}, f32[8]{0:T(128)S(1)}, u32[]{:S(2)}) copy-start(%x)
  %one = f32[8]{0:T(128)S(1)} all-reduce(%x), to_apply=%add
  %b.1 = s8[16,64]{1,0:T(8,128)S(1)} slice-done(%b)
  %c.1 = f32[8]{0:T(128)} copy-done(%c)
  %two = f32[8]{0:T(128)S(1)} all-reduce(%one), to_apply=%add
  %a.1 = s8[64,64]{1,0:T(8,128)S(1)} copy-done(%a)
  ROOT %three = f32[8]{0:T(128)S(1)} all-reduce(%two), to_apply=%add
}
"""


def test_what_is_read_during_exchanges():
    found = collectives(read_module(PREFETCHES))
    assert [x.prefetched for x in found] == [64 * 64 // 2 + 16 * 64, 64 * 64 // 2, 0]
    # 3,072 bytes take longer than the exchange if the memory is slow.
    slow = dataclasses.replace(V5E, bandwidth=1e6)
    setting = Setting(slow, 16, 16, 3.6)
    assert setting.hidden(found[:1]) == setting.exchange(found[:1])
    fast = Setting(dataclasses.replace(V5E, bandwidth=1e9), 16, 16, 3.6)
    assert fast.hidden(found[:1]) == pytest.approx(3072 / 1e9)


def on_eight_devices(*words):
    """What `sharded_compile.py` reports."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "sharded_compile.py"), *words],
        env={**os.environ, "XLA_FLAGS": flags},
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "program"),
    [
        ("dart", "step"),
        ("plain", "step"),
        ("dart", "prefill"),
        ("dart", "loop"),
        ("dart", "serve"),
    ],
)
def test_drawing_joins_no_logits(method, program):
    """With every filter, penalty and a bias, devices exchange a few numbers of each row: far fewer
    than even one device's part of its logits."""
    report = on_eight_devices(method, program)
    # Without a kernel for pages, plain JAX copies them.
    assert [x for x in report["violations"] if "copies of caches" not in x] == []
    nodes = 9 if method == "dart" and program != "prefill" else 1
    rows = nodes * (4 if program == "serve" else 2)
    largest = most(report["exchanged"], "all-gather")
    assert largest == 4 * 128 * 4 * rows  # of each row, the 128 largest logits of four devices
    assert largest < report["part"] * rows / 10
    if method == "dart":  # likewise of the eight positions that are drafted
        assert most(report["drafted"], "all-gather") == 4 * 128 * 4 * rows // nodes * 8
    # Else numbers of each row, and what the drafter's layer adds up.
    added = 4 * 1024 * rows // nodes * (16 if program == "prefill" else 9)
    sums = most([*report["exchanged"], *report["drafted"]], "all-reduce")
    assert sums <= (added * 1.1 if method == "dart" else 8 * rows)


def most(exchanged, kind):
    """Bytes of the largest exchange of a kind."""
    return max(size for each, size, *_ in exchanged if each == kind)


@pytest.mark.long
def test_a_step_of_eight_devices():
    """Two all-reduces a layer and the largest logits; a device holds what is said, and the bytes
    that it must move are fewer than one device's."""
    report = on_eight_devices()
    for method, rows in (("plain", 1), ("dart", 9), ("dart, projections joined", 9)):
        found = report[method]
        drafting = [x for x in found["exchanged"] if x[4]]
        found["exchanged"] = [x for x in found["exchanged"] if not x[4]]
        sums = [x for x in found["exchanged"] if x[0] == "all-reduce"]
        # Rows of two sequences of each group, 64 numbers in float32.
        size = 2 * rows * 64 * 4
        assert sums == [["all-reduce", size, 1, i, False, 0] for i in range(7) for _ in "ab"]
        [gather] = [x for x in found["exchanged"] if x[0] != "all-reduce"]
        assert gather == ["all-gather", 4 * 2 * 2 * rows * 4, 1, None, False, 0]
        if method == "plain":
            assert drafting == []
        else:
            # Its projection of the path's nine rows, its attention and MLP; 25 candidates of each
            # device for each of eight positions, with their logits.
            sizes = [["all-reduce", 2 * n * 64 * 4] for n in (9, 8, 8)]
            sizes += [["all-gather", 2 * 8 * 25 * 4 * 2 * 4]]
            assert drafting == [[*size, 1, None, True, 0] for size in sizes]
        assert found["violations"] == []
        assert found["held"] <= found["arguments"] < found["held"] + 1000
        assert found["held"] < found["whole"]
        part, whole = found["least"]
        assert part[0] < whole[0]
        assert part[1] < whole[1]
    assert report["whole weight"][0] == ["all-gather", 64 * 32 * 4, 1, None, False, 0]


@pytest.mark.long
def test_layers_that_were_left_out():
    found = [*layers_of(7, 10), HEAD]
    assert Total.of(with_layers(found, 7, 80)) == (161, 160 * 10 + HEAD.bytes)
    assert with_layers(found, 7, 7) == found
    cut, whole = (summary_of("tiny", 4, layers=n) for n in (7, None))
    assert cut.room(10**9) == whole.room(10**9)
    cut, whole = (summary_of("llama-3.1-70b", 8, layers=n) for n in (8, None))
    # The rows of the tree wait for their places in the cache: 72 layers, keys and values of a head.
    rows = 9 * 72 * 2 * 128 * 2
    assert cut.room(10**12).temporary - whole.room(10**12).temporary == rows
    assert cut.room(10**12).weights == whole.room(10**12).weights


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([*layers_of(7, 10), HEAD], None),
        ([*layers_of(7, 10, sums=1), HEAD], "1 all-reduces in layer 0, not 2 all-reduces"),
        (
            [*layers_of(7, 10), Collective("all-gather", 10**6, 1, 2), HEAD],
            "2 all-reduces and all-gather in layer 2, not 2 all-reduces",
        ),
        (
            [*layers_of(7, 10), HEAD._replace(bytes=4 * 9 * 512)],
            "an all-gather of 18,432 bytes: weights or logits are exchanged",
        ),
        ([*layers_of(7, 10), HEAD, HEAD], "2 exchanges outside of the layers, not 1"),
    ],
)
def test_checks(found, message):
    lines = list(violations(summary_of("tiny", 4, found=found), Limits()))
    assert [line.partition(": ")[2] for line in lines] == ([message] if message else [])


def test_checks_of_drawing():
    """The largest logits of each row may be joined for top-k; a row of logits may not."""
    vocabulary = 128256
    parts = Collective("all-reduce", 4 * 9, 1, None), Collective("all-gather", 8 * 9 * 512, 1, None)
    drawn = {"sampling": Sampling(1.0, 50)}

    def found(*more, **settings):
        each = [*layers_of(7, 10), HEAD, *parts, *more]
        summary = summary_of("llama-3.1-70b", 8, layers=7, found=each, **settings)
        return [line.partition(": ")[2] for line in violations(summary, Limits())]

    assert found(**drawn) == []
    assert len(found(sampling=Sampling(1.0, top_p=0.9))) == 1  # nothing but top-k needs these
    assert len(found()) == 2  # nor does greedy decoding need any
    for joined in (Collective("all-gather", 4 * vocabulary, 1, None), HEAD._replace(bytes=10**6)):
        [line] = found(joined, **drawn)
        assert "logits are exchanged" in line


def test_one_device_exchanges_nothing():
    assert list(violations(summary_of("tiny"), Limits())) == []
    lines = list(violations(summary_of("tiny", found=layers_of(7, 10)), Limits()))
    assert len(lines) == 1
    assert "2 all-reduces in layer 0, not 0" in lines[0]


@pytest.mark.long
def test_the_published_shapes():
    llama, qwen = target_of("llama-3.1-70b"), target_of("qwen3-235b-a22b")
    assert parameters(llama) == 70_553_706_496
    assert parameters(qwen) == 235_093_634_560
    assert drafter_of(qwen).hidden_size == 4096


@pytest.mark.long
def test_what_a_device_holds_and_reads():
    one, eight, sixteen = (summary_of("llama-3.1-70b", n, nodes=0).case for n in (1, 8, 16))
    embeddings = 2 * 128256 * 8192
    norms = 2 * (2 * 80 + 1) * 8192
    assert one.weight_bytes == 2 * parameters(target_of("llama-3.1-70b"))
    rest = one.weight_bytes - embeddings - norms
    assert eight.weight_bytes == rest // 8 + embeddings + norms
    assert eight.weights_needed == eight.weight_bytes - embeddings
    # Sixteen devices have eight heads of keys and values twice.
    doubled = 2 * 80 * 8192 * 8 * 128 * 2
    assert sixteen.weight_bytes == (rest + doubled) // 16 + embeddings + norms
    assert one.cached_token == 2 * 80 * 8 * 128 * 2
    assert (eight.cached_token, sixteen.cached_token) == (one.cached_token // 8,) * 2
    mixture = summary_of("qwen3-235b-a22b", 8, nodes=0).case
    costs, alone = mixture.costs, summary_of("qwen3-235b-a22b", nodes=0).case.costs
    assert costs.reached_experts(1) == pytest.approx(8)
    assert 1 < alone.target_weights(1) / costs.target_weights(1) < 8  # the router is whole
    assert alone.plain().operations / costs.plain().operations == pytest.approx(8, rel=0.1)


def test_room_for_caches():
    found = Room(memory=1000, weights=600, temporary=50, token=10, groups=2)
    assert (found.left, found.tokens) == (350, 70)
    full = dataclasses.replace(found, weights=960)
    assert (full.left, full.tokens) == (-10, 0)


def test_time_of_a_step():
    setting = Setting(V5E, 16, 16, 3.6)
    # 15/16 of the bytes reach a device, twice, over the links of two axes, 45 GB/s each.
    one = Collective("all-reduce", 16 * 10**6, 1, 0)
    assert setting.exchange([one]) == pytest.approx(2 * 15e6 / 90e9)
    gathered = one._replace(kind="all-gather", times=3)
    assert setting.exchange([gathered]) == pytest.approx(3 * 15e6 / 90e9)
    # Few bytes: six hops of 1 us, there and back; along an axis of 16 chips, at most eight.
    few = one._replace(bytes=1000)
    assert setting.exchange([few]) == pytest.approx(12e-6)
    ring = Setting(V5E, 128, 128, 3.6)  # 8 x 16
    assert ring.exchange([few]) == pytest.approx(2 * (7 + 8) * 1e-6)
    assert ring.exchange([one]) == pytest.approx(2 * 16e6 * 127 / 128 / (3 * 45e9))
    cube = Setting(ACCELERATORS["v5p"], 64, 64, 3.6)  # 4 x 4 x 4
    assert cube.exchange([few]) == pytest.approx(12e-6)
    assert Setting(ACCELERATORS["v5p"], 16, 16, 3.6).exchange([few]) == pytest.approx(10e-6)
    waits = [one._replace(bytes=0)]
    moving, computing = Cost(819 * 10**6, 1), Cost(1, 197 * 10**9)
    assert setting.step(moving, waits) == pytest.approx(1.012e-3)
    assert setting.step(computing, waits) == pytest.approx(1.012e-3)
    # What is read meanwhile hides an exchange, but only from a step that waits for the memory.
    hidden = [one._replace(bytes=0, prefetched=10**8), *waits]
    assert setting.step(moving, hidden) == pytest.approx(1.012e-3)
    assert setting.step(computing, hidden) == pytest.approx(1.024e-3)
    half = dataclasses.replace(setting, efficiency=0.5)
    assert half.step(moving, waits) == pytest.approx(2.012e-3)
    gpus = Setting(ACCELERATORS["h200"], 8, 8, 3.6)
    assert gpus.exchange(waits) == 9e-6
    assert gpus.exchange([one]) == pytest.approx(9e-6 + 2 * 14e6 / 450e9)


@pytest.mark.long
def test_predictions():
    setting = Setting(ACCELERATORS["h200"], 8, 8, 3.6)
    found = [*layers_of(8, 8 * 8192 * 2), HEAD]
    plain, drafted = (summary_of("llama-3.1-70b", 8, 2, n, 8, found) for n in (0, 8))
    for each, tau in ((plain, 1), (drafted, 3.6)):
        cost = each.case.whole.least("step")
        assert cost is not None
        exchange = setting.exchange(each.exchanged)
        seconds = cost.bytes / 4.8e12 + exchange
        assert each.seconds_of_step(setting) == pytest.approx(seconds)
        assert each.tokens_per_second(setting) == pytest.approx(2 * tau / seconds)
    prompt = dataclasses.replace(plain, program="prefill")
    assert prompt.tokens_per_second(setting) is None
    assert prediction([prompt], setting).rows == []
    content = json.loads(json.dumps(drafted.as_json() | {"predicted": drafted.predicted(setting)}))
    assert content["collectives"]["all-reduce"]["count"] == 16
    assert content["execution"]["mesh"] == {"data": 1, "model": 8}
    assert content["predicted"]["hidden_seconds"] == 0
    grids = [table([plain, drafted], setting) for table in (room, exchanges, prediction)]
    for grid in grids:
        assert "8 x NVIDIA H200" in grid.title
        assert {len(row) for row in grid.rows} == {len(grid.columns)}
        widths = [max(map(len, cells)) for cells in zip(grid.columns, *grid.rows, strict=True)]
        assert sum(widths) + 2 * (len(widths) - 1) + 2 <= 80, grid.columns
    small = room([plain], dataclasses.replace(setting, accelerator=V5E))
    assert small.rows[0][small.columns.index("fits")] == "no"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "model"}, "a mesh is written like data=1,model=4"),
        (
            {"mesh": "model=3"},
            "3 devices of a mesh cannot share 32 attention heads evenly",
        ),
        ({"mesh": "data=2,model=8"}, "larger than one machine of NVIDIA H200 SXM, which has 8"),
        (
            {"device": "v6e", "mesh": "model=512"},
            "a mesh of 512 devices is larger than the largest slice of TPU v6e, which has 256",
        ),
        ({"mesh": "data=2,model=4"}, "2 groups of devices cannot share a batch of 1 evenly"),
        ({"mesh": "model=8", "program": ("search",)}, "--program search runs on one device"),
        (
            {"mesh": "data=2,model=4", "program": ("serve",), "batch_size": (2,)},
            "--program serve runs on one group of devices; choose data=1",
        ),
        ({"top_k": 50}, "need a --temperature above 0"),
        ({"temperature": -1.0}, "temperature must be 0 or a positive number"),
        ({"tau": 0.5}, "--tau must be at least 1"),
        ({"efficiency": 0.0}, "--efficiency must be above 0 and at most 1"),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        CompileConfig(**options)


def test_layouts_of_devices():
    assert ACCELERATORS["h200"].topology(8) == (1, 1, 8)
    assert V5E.topology(1) == (2, 2)
    assert V5E.topology(16) == (4, 4)
    assert ACCELERATORS["v5p"].topology(5) == (2, 2, 2)
    config = CompileConfig(mesh="model=8", batch_size=(4,))
    assert (config.setting.devices, config.setting.shards) == (8, 8)
    assert all(case.execution.mesh is None for case in config.cases())
    assert jax.devices()[0].platform == "cpu"
