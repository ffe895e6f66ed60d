"""eval.compile: what it reads from compiled programs, and its programs, compiled for this CPU."""

import dataclasses

import jax
import pytest
from jax.sharding import AbstractMesh
from support_process import on_eight_devices

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.devices import Devices
from eval.compile import devices
from eval.compile.cases import Case, lower
from eval.compile.check import violations
from eval.compile.findings import Result, inspect, read_graphs
from eval.latency.shapes import cost

GPU = devices.ACCELERATORS["h200"].execution


@pytest.fixture(scope="module")
def device():
    return jax.devices("cpu")[0]


# A module by hand, in the form of those of GPUs and TPUs: a loop that copies a cache and calls the
# host, a cache that is padded, one that is brought into a TPU's vector memory, exchanges in one
# instruction and in two, and kernels.
CACHE = "bf16[2,100,16]{2,1,0}"
ON_CHIP = "bf16[2,100,16]{2,1,0:T(8,128)(2,1)S(1)}"
MODULE = f"""HloModule jit_f, input_output_alias={{ {{0}}: (1, {{}}, may-alias) }}

%pad (p: bf16[2,100,16]) -> bf16[2,128,16] {{
  %p = {CACHE} parameter(0)
  %zero = bf16[] constant(0)
  ROOT %pad.1 = bf16[2,128,16]{{2,1,0}} pad(%p, %zero), metadata={{op_name="jit(f)/verify/pad"}}
}}

%write (p: bf16[2,100,16]) -> bf16[2,100,16] {{
  %p.2 = {CACHE} parameter(0)
  %u = bf16[1,1,16]{{2,1,0}} constant({{...}})
  ROOT %row = {CACHE} dynamic-update-slice(%p.2, %u, %i)
}}

%body (arg: (s32[], bf16[2,100,16])) -> (s32[], bf16[2,100,16]) {{
  %arg = (s32[], {CACHE}) parameter(0)
  %found = s32[] custom-call(%i), custom_call_target="xla_ffi_python_gpu_callback"
  %copy = {CACHE} copy(%cache), metadata={{op_name="jit(f)/while/verify/layer_3/copy"}}
  %sum = f32[8]{{0}} all-reduce(%x), to_apply=%add, metadata={{op_name="f/layer_3/mlp/psum"}}
  ROOT %t = (s32[], {CACHE}) tuple(%found, %copy)
}}

%condition (arg: (s32[], bf16[2,100,16])) -> pred[] {{
  ROOT %compare = pred[] compare(%i.1, %limit), direction=LT
}}

ENTRY %main (x: s32[], c: bf16[2,100,16]) -> f32[] {{
  %x = s32[] parameter(0)
  %cache.1 = {CACHE} parameter(1), metadata={{op_name="state.target_cache[3][0]"}}
  %cache.2 = {CACHE} parameter(2), metadata={{op_name="state.target_cache[3][1]"}}
  %first = (s32[], {CACHE}) tuple(%x, %cache.1)
  %padded = bf16[2,128,16]{{2,1,0}} fusion(%cache.1), kind=kLoop, calls=%pad
  %written = {CACHE} fusion(%cache.1), kind=kLoop, calls=%write
  %fetch = ({ON_CHIP}, {CACHE}, u32[]{{:S(2)}}) copy-start(%cache.1)
  %fetched = {ON_CHIP} copy-done(%fetch)
  %kernel = f32[9]{{0}} custom-call(%cache.1), custom_call_target="tpu_custom_call", \
metadata={{op_name="jit(f)/verify/layer_3/attention/pallas_call"}}
  %begin = (s32[1,2,8]{{2,1,0}}, s32[8,2,8]{{2,1,0}}) all-gather-start(%i), dimensions={{0}}
  %end = s32[8,2,8]{{2,1,0}} all-gather-done(%begin)
  %drafted = bf16[1,8,64]{{2,1,0}} all-reduce-start(%x), metadata={{op_name="f/draft/layer_0/o"}}
  ROOT %while = (s32[], {CACHE}) while(%first), condition=%condition, body=%body, \
backend_config={{"known_trip_count":{{"n":"5"}}}}
}}
"""


class Printed:
    """A compiled program of which only the text is known."""

    def as_text(self):
        return MODULE

    def memory_analysis(self):
        sizes = {"argument": 100, "output": 50, "temp": 30, "alias": 40}
        names = {f"{name}_size_in_bytes": size for name, size in sizes.items()}
        return type("Memory", (), names)()


def test_a_module_by_hand(tmp_path):
    findings = inspect(Printed(), 1.0, tmp_path)
    assert findings.copies == ["verify/padded", "while/verify/layer_3/copy"]
    assert findings.not_in_place == ["state.target_cache[3][1]"]
    assert findings.host == ["found"]
    assert findings.attention == [3]
    assert findings.of_a_layer == 3  # a kernel, and in the loop a copy and a sum
    assert (findings.peak, findings.graphs) == (140, None)
    assert findings.exchanges == [
        ("all-gather", 4 * 8 * 2 * 8),
        ("all-reduce", 2 * 8 * 64),
        ("all-reduce", 32),
    ]


SCHEDULE = """000: kCommandBuffer [source       | next=004 (1)]
    001: kCustomKernel [source       | next=002 (1)] sort_1
    002: kCustomKernel [prev=001 (1) | next=003 (1)] sort_1__1
    003: kCopy         [source       | sink        ] kCopy
004: kWhile        [prev=000 (1) | sink        ]
condition:
    005: kCustomKernel [source | sink] loop_compare
  body:
    006: kCustomCall    [source       | next=000 (1)] kCustomCall
    000: kCommandBuffer [prev=006 (1) | sink        ]
        007: kCustomKernel [source | sink] product
"""
THUNKS = "".join(
    f'thunk_metadata {{\n  thunk_info {{\n    profile_annotation: "{name}"\n'
    f'    thunk_id: {number}\n  }}\n  thunk_kind: "{kind}"\n}}\n'
    for number, name, kind in [
        (0, "command_buffer_1", "kCommandBuffer"),
        (1, "fusion", "kCustomKernel"),
        (2, "fusion", "kCustomKernel"),
        (3, "copy.1", "kCopy"),
        (4, "while.1", "kWhile"),
        (5, "compare", "kCustomKernel"),
        (6, "callback", "kCustomCall"),
        (7, "dot", "kCustomKernel"),
    ]
)


def test_cuda_graphs(tmp_path):
    assert read_graphs(tmp_path) is None
    (tmp_path / "module_1.jit_f.thunk_sequence_after_thunk_passes.txt").write_text(SCHEDULE)
    (tmp_path / "module_1.jit_f.thunk_metadata.txt").write_text(THUNKS)
    graphs = read_graphs(tmp_path)
    assert graphs == (
        2,
        {"fusion", "copy.1", "dot"},
        {"fusion": 2, "copy.1": 1, "compare": 1, "callback": 1, "dot": 1},
    )


# The programs.


def case(method, **settings):
    options = {"batch": 2, "context": 50, "prompt": 16, "dtype": "float32"} | settings
    return Case("tiny", method, 0 if method == "plain" else 8, **options)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("method", ["plain", "dart", "eagle3", "dflash", "dspark"])
@pytest.mark.parametrize("program", ["prefill", "step", "loop", "serve"])
def test_every_program_lowers(method, program, device):
    for level in ("greedy", "full"):
        assert lower(case(method, level=level), program, device).as_text()


@pytest.fixture(scope="module")
def compiled(device):
    return lower(case("dart"), "step", device).compile()


@pytest.fixture(scope="module")
def result(compiled, tmp_path_factory):
    return Result(case("dart"), "step", inspect(compiled, 1.0, tmp_path_factory.mktemp("dump")))


def test_a_step(result):
    findings, config = result.findings, result.case.config
    assert list(violations(result)) == []
    assert findings.of_a_layer >= 7  # as many products
    assert findings.kernels > 7 * config.target.num_hidden_layers
    assert findings.peak > 0


def test_xla_counts_as_many_operations(compiled):
    """And besides those of activations and norms."""
    config = case("dart").config
    least = cost(config, "float32", 2, config.capacity(50))
    assert 1 <= compiled.cost_analysis()["flops"] / least.operations < 1.3


MESH = {"execution": Execution(devices=Devices(AbstractMesh((1, 4), ("data", "model"))))}


def messages(result, limit=float("inf"), program="step", settings=None, **figures):
    """The faults of a result with other figures and settings."""
    other = dataclasses.replace(result.case, **settings or {})
    findings = dataclasses.replace(result.findings, **figures)
    lines = violations(Result(other, program, findings), limit)
    return [line.partition(": ")[2] for line in lines]


def test_checks(result):
    most, gpu = result.findings.of_a_layer, {"execution": GPU, "dtype": "bfloat16"}
    assert messages(result, most) == messages(result, graphs=1) == []
    assert messages(result, 3) == [f"{most:g} kernels in a layer, more than 3"]
    some = {"copies": ["a/copy.1"], "attention": [0, 1, 2, 4, 6, None]}
    assert messages(result, settings=gpu, **some) == [
        "a/copy.1 copies a cache",
        "no Pallas kernel computes the attention of layers [3, 5]",
    ]
    assert messages(result, settings=gpu, copies=[], attention=[*range(7)]) == []
    outside = {"outside": ["a/b", "a/b"]}
    assert messages(result, program="prefill", not_in_place=["cache"]) == []
    assert messages(result, program="loop", **outside) == []
    # What devices add up, and the largest logits; but no row of logits.
    sizes = [("all-reduce", 4 * 18 * 64), ("all-gather", 4 * 18 * 8)]
    assert messages(result, settings=MESH, exchanges=sizes) == []
    for figures, message in (
        ({"longest_sort": 10**6}, "a sort of 1,000,000 entries, the whole vocabulary of 512"),
        ({"graphs": 2}, "2 CUDA graphs, not 1"),
        ({"not_in_place": ["cache"]}, "cache are not updated in place"),
        (
            {"settings": {"method": "eagle3"}, "graphs": 4},  # passes are a loop
            "4 CUDA graphs, not 3",
        ),
        (outside, "outside of CUDA graphs run a/b"),
        ({"host": ["call"]}, "transfers to or from the host: call"),
        (
            {"settings": MESH, "exchanges": [("all-gather", 4 * 18 * 512)]},
            "an all-gather of 36,864 bytes: weights or logits are exchanged",
        ),
    ):
        assert messages(result, **figures) == [message]


@pytest.mark.long
@pytest.mark.parametrize(("method", "rows"), [("plain", 1), ("dart", 9)])
def test_a_step_of_eight_devices(method, rows):
    """Two all-reduces a layer and the largest logits."""
    report = on_eight_devices("sharded_compile.py", "greedy", method)
    assert report["violations"] == []
    # Rows of two sequences of each group, 64 numbers in float32.
    expected = 14 * [("all-reduce", 2 * rows * 64 * 4)] + [("all-gather", 4 * 2 * 2 * rows * 4)]
    if method == "dart":
        # Its projection of the path's nine rows, its attention and MLP; 25 candidates of each
        # device for each of eight positions, with their logits.
        expected += [("all-reduce", 2 * n * 64 * 4) for n in (9, 8, 8)]
        expected += [("all-gather", 2 * 8 * 25 * 4 * 2 * 4)]
    assert sorted(map(tuple, report["exchanges"])) == sorted(expected)


@pytest.mark.long
@pytest.mark.parametrize("program", ["step", "loop"])
def test_drawing_joins_no_logits(program):
    """With every filter, penalty and a bias, devices exchange a few numbers of each row: far fewer
    than even one device's part of its logits."""
    report = on_eight_devices("sharded_compile.py", "full", "dart", program)
    assert report["violations"] == []
    gathers = [size for kind, size in report["exchanges"] if kind == "all-gather"]
    assert max(gathers, default=0) < report["part"] * 2 * 9 / 10


def test_without_the_devices_compiler(monkeypatch):
    def missing(**_):
        raise RuntimeError("Unknown backend cuda\nand more")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", missing)
    with pytest.raises(UserError, match=r"Unknown backend cuda; pip install 'dart-jax\[aot\]'$"):
        devices.compile_only("h200")
