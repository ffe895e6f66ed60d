"""eval.compile: what it reads from compiled programs, and its programs, compiled for this CPU."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from support_process import on_eight_devices

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.devices import Devices
from eval.compile import devices
from eval.compile.cases import Case, lower
from eval.compile.check import violations
from eval.compile.findings import Collective, Result, inspect, read_graphs
from eval.compile.program import CompileConfig, grids, main
from eval.latency.cost import costs
from eval.latency.hlo import Array, arrays, read_module

GPU = devices.ACCELERATORS["h200"].execution


@pytest.fixture(scope="module")
def device():
    return jax.devices("cpu")[0]


def findings_of(function, *shapes, folder, **options):
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return inspect(jax.jit(function, **options).lower(*given).compile(), 1.0, folder)


# What a program runs.


def test_sizes():
    assert [x.size for x in arrays("(f32[2]{0}, (s32[], pred[7]{0}, token[]))")] == [8, 4, 7]
    assert arrays("f32[2]{0:T(128)S(1)}") == (Array("f32", (2,), on_chip=True),)


def test_a_loop_counts_once():
    def loop(x, w):
        return jax.lax.fori_loop(0, 9, lambda _, x: jnp.sin(x @ w), x)

    shapes = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 64), (64, 64)))
    text = jax.jit(loop).lower(*shapes).compile().as_text()
    products = [x for x in read_module(text or "").runs if "dot_general" in x.scope]
    assert [x.instruction.opcode in ("dot", "custom-call", "fusion") for x in products] == [True]


def test_a_cache_that_is_not_updated_in_place(tmp_path):
    def update(cache, rows):
        return jax.lax.dynamic_update_slice(cache, rows, (0, 3, 0))

    shapes = (2, 1000, 64), (2, 8, 64)
    kept = findings_of(update, *shapes, folder=tmp_path, donate_argnums=0)
    assert (kept.copies, kept.not_in_place) == ([], [])
    copied = findings_of(update, *shapes, folder=tmp_path)
    assert copied.not_in_place == ["cache"]
    assert len(copied.copies) == 1
    assert copied.longest_sort == 0
    ordered = findings_of(lambda x: jnp.sort(x, axis=1), (8, 5000), folder=tmp_path)
    assert ordered.longest_sort == 5000


# A module by hand, in the form of those of GPUs and TPUs: a loop that copies a cache and calls the
# host, a cache that is padded, one that is brought into a TPU's vector memory, exchanges in one
# instruction, in two and in a fusion, and kernels.
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

%scattered (p: bf16[16]) -> bf16[4] {{
  ROOT %part = bf16[4]{{0}} reduce-scatter(%p), to_apply=%add
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
  %moved = (f32[4]{{0}}, f32[4]{{0}}, u32[], u32[]) collective-permute-start(%y)
  %drafted = bf16[1,8,64]{{2,1,0}} all-reduce-start(%x), metadata={{op_name="f/draft/layer_0/o"}}
  %fused = bf16[4]{{0}} fusion(%x), kind=kCustom, calls=%scattered
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


def test_what_a_program_does(tmp_path):
    found = inspect(Printed(), 1.0, tmp_path)
    assert found.copies == ["verify/padded", "while/verify/layer_3/copy"]
    assert found.not_in_place == ["state.target_cache[3][1]"]
    assert found.host == ["found"]
    assert (found.pallas, found.attention) == (1, [3])
    assert found.of_a_layer == 3  # a kernel, and in the loop a copy and a sum
    assert (found.peak, found.graphs) == (140, None)
    assert found.collectives == [
        Collective("all-gather", 4 * 8 * 2 * 8),
        Collective("collective-permute", 16),
        Collective("all-reduce", 2 * 8 * 64, draft=True),
        Collective("reduce-scatter", 8),
        Collective("all-reduce", 32, 3),
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


def test_what_is_in_cuda_graphs(tmp_path):
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
@pytest.mark.parametrize("method", ["plain", "dart", "eagle3"])
def test_every_program_lowers(method, device):
    for level in ("greedy", "full"):
        for program in ("prefill", "step", "loop", "serve"):
            assert lower(case(method, level=level), program, device).as_text()


@pytest.fixture(scope="module")
def result(device, tmp_path_factory):
    tiny = case("dart")
    program = lower(tiny, "step", device).compile()
    return Result(tiny, "step", inspect(program, 1.0, tmp_path_factory.mktemp("dump")))


def test_a_step(result):
    found, config = result.findings, result.case.config
    assert list(violations(result)) == []
    assert found.of_a_layer >= 7  # as many products
    assert found.kernels > 7 * config.target.num_hidden_layers
    assert found.arguments <= found.peak


def test_xla_counts_as_many_operations(device):
    """And besides those of activations and norms."""
    tiny = case("dart")
    analysis = lower(tiny, "step", device).compile().cost_analysis()
    least = costs(tiny.config, "float32", 2, tiny.config.capacity(50))["step"]
    assert 1 <= analysis["flops"] / least.operations < 1.3


def test_a_step_in_pages(device, tmp_path):
    """Its pools are updated in place."""
    program = lower(case("dart"), "serve", device).compile()
    found = inspect(program, 1.0, tmp_path)
    assert found.not_in_place == []
    assert not found.host


def test_tables_fit_into_80_columns(result):
    long = dataclasses.replace(result.findings, graphs=1, outside=["x"] * 1000, peak=10**11)
    other = dataclasses.replace(result.case, batch=32, nodes=60)
    tables = grids([result, Result(other, "prefill", long)], "NVIDIA H200 SXM")
    assert len(tables) == 2
    for grid in tables:
        assert "tiny, float32, context 50, compiled for NVIDIA H200" in grid.title
        assert {len(row) for row in grid.rows} == {len(grid.columns)}
        widths = [max(map(len, cells)) for cells in zip(grid.columns, *grid.rows, strict=True)]
        assert sum(widths) + 2 * (len(widths) - 1) + 2 <= 80, grid.columns


def layers_of(size=10, sums=2):
    return [Collective("all-reduce", size, i) for i in range(7) for _ in range(sums)]


HEAD = Collective("all-gather", 4 * 2 * 9 * 4)
MESH = AbstractMesh((1, 4), ("data", "model"))


def messages(result, limit=None, settings=None, program="step", **figures):
    """The faults of a result with other figures and settings."""
    settings = settings or {}
    other = dataclasses.replace(result.case, **settings)
    found = dataclasses.replace(result.findings, **figures)
    lines = violations(Result(other, program, found), limit)
    return [line.partition(": ")[2] for line in lines]


def test_checks(result):
    most = result.findings.of_a_layer
    assert messages(result, most) == []
    assert messages(result, 3) == [f"{most:g} kernels in a layer, more than 3"]
    on_gpu = {"execution": GPU}
    assert messages(result, settings=on_gpu, copies=["a/copy.1"]) == ["a/copy.1 copies a cache"]
    assert messages(result, not_in_place=["cache"]) == ["cache are not updated in place"]
    assert messages(result, not_in_place=["cache"], program="prefill") == []
    assert "whole vocabulary of 512" in messages(result, longest_sort=10**6)[0]
    assert messages(result, host=["call"]) == ["transfers to or from the host: call"]
    # A search on the host exchanges data in the loop; EAGLE-3 has none.
    searching = {"settings": {"search": "native"}, "host": ["call"]}
    assert messages(result, program="loop", **searching) == []
    assert len(messages(result, **searching)) == 1
    eagle = {"search": "native", "method": "eagle3"}
    assert len(messages(result, program="loop", host=["call"], settings=eagle)) == 1
    assert messages(result, graphs=1) == []
    assert messages(result, graphs=2) == ["2 CUDA graphs, not 1"]
    outside = {"graphs": 1, "outside": ["a/b", "a/b"]}
    assert messages(result, **outside) == ["outside of CUDA graphs run a/b"]
    assert messages(result, program="loop", **outside) == []
    kernels = {"settings": {"execution": GPU, "dtype": "bfloat16"}}
    [line] = messages(result, **kernels, attention=[0, 1, 2, 4, 6, None], copies=[])
    assert line == "no Pallas kernel computes the attention of layers [3, 5]"
    assert messages(result, **kernels, attention=[*range(7)], copies=[]) == []


@pytest.mark.parametrize(
    ("level", "exchanges", "message"),
    [
        ("greedy", [*layers_of(), HEAD], None),
        ("greedy", [*layers_of(sums=1), HEAD], "1 all-reduces in layer 0, not 2 all-reduces"),
        (
            "greedy",
            [*layers_of(), Collective("all-gather", 10**6, 2), HEAD],
            "2 all-reduces and all-gather in layer 2, not 2 all-reduces",
        ),
        (
            "greedy",
            [*layers_of(), HEAD._replace(bytes=4 * 9 * 512)],
            "an all-gather of 18,432 bytes: weights or logits are exchanged",
        ),
        ("greedy", [*layers_of(), HEAD, HEAD], "2 exchanges outside of the layers, not 1"),
        # The largest logits of each row may be joined for top-k; a row of logits may not.
        ("filtered", [*layers_of(), HEAD, HEAD._replace(bytes=4 * 4 * 128 * 18)], None),
        (
            "filtered",
            [*layers_of(), HEAD._replace(bytes=4 * 151936)],
            "an all-gather of 607,744 bytes: weights or logits are exchanged",
        ),
    ],
)
def test_checks_of_exchanges(result, level, exchanges, message):
    settings = {"execution": Execution(devices=Devices(MESH)), "level": level}
    lines = messages(result, settings=settings, collectives=exchanges)
    assert lines == ([message] if message else [])


def test_one_device_exchanges_nothing(result):
    lines = messages(result, collectives=layers_of())
    assert lines == ["2 all-reduces in layer 0, not 0 all-reduces"]


@pytest.mark.long
@pytest.mark.parametrize(("method", "rows"), [("plain", 1), ("dart", 9)])
def test_a_step_of_eight_devices(method, rows):
    """Two all-reduces a layer and the largest logits."""
    report = on_eight_devices("sharded_compile.py", "greedy", method)
    drafting = [x for x in report["exchanges"] if x["draft"]]
    others = [(x["kind"], x["bytes"], x["layer"]) for x in report["exchanges"] if not x["draft"]]
    # Rows of two sequences of each group, 64 numbers in float32.
    size = 2 * rows * 64 * 4
    assert [x for x in others if x[2] is not None] == [
        ("all-reduce", size, i) for i in range(7) for _ in "ab"
    ]
    assert [x for x in others if x[2] is None] == [("all-gather", 4 * 2 * 2 * rows * 4, None)]
    # Its projection of the path's nine rows, its attention and MLP; 25 candidates of each device
    # for each of eight positions, with their logits.
    sizes = [2 * n * 64 * 4 for n in (9, 8, 8)] + [2 * 8 * 25 * 4 * 2 * 4]
    assert [x["bytes"] for x in drafting] == (sizes if method == "dart" else [])
    assert report["violations"] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "program"),
    [
        (m, p)
        for m, p in [
            ("plain", "step"),
            *(("dart", p) for p in ("step", "prefill", "loop", "serve")),
        ]
    ],
)
def test_drawing_joins_no_logits(method, program):
    """With every filter, penalty and a bias, devices exchange a few numbers of each row: far fewer
    than even one device's part of its logits."""
    report = on_eight_devices("sharded_compile.py", "full", method, program)
    assert report["violations"] == []
    nodes = 9 if method == "dart" else 1
    rows = nodes * 2
    outside = [x for x in report["exchanges"] if x["layer"] is None]
    gathers = [x["bytes"] for x in outside if x["kind"] == "all-gather" and not x["draft"]]
    if program == "prefill":  # draws nothing
        assert gathers == []
        return
    assert max(gathers) == 4 * 128 * 4 * rows  # of each row, the 128 largest logits of each
    assert max(gathers) < report["part"] * rows / 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "model"}, "a mesh is written like data=1,model=4"),
        ({"mesh": "model=3"}, "3 devices of a mesh cannot share 32 attention heads evenly"),
        ({"mesh": "data=2,model=8"}, "larger than one machine of NVIDIA H200 SXM, which has 8"),
        (
            {"device": "v6e", "mesh": "model=512"},
            "a mesh of 512 devices is larger than the largest slice of TPU v6e, which has 256",
        ),
        ({"mesh": "data=2,model=4"}, "2 groups of devices cannot share a batch of 1 evenly"),
        ({"mesh": "model=8", "program": ("search",)}, "--program search runs on one device"),
        ({"layers": 3}, "--layers must be at least 7"),
        ({"device": "v6e", "search": "native"}, "--search native needs a GPU"),
        ({"max_kernels_a_layer": 3.0}, "--max-kernels-a-layer needs --check"),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        CompileConfig(**options)


def test_settings():
    config = CompileConfig(program=("step", "search"), tree_nodes=(8, 60), batch_size=(1, 32))
    assert [(c.method, c.batch, c.nodes, p) for c, p in config.programs()] == [
        (method, batch, nodes, name)
        for batch in (1, 32)
        for method, nodes in (("plain", 0), ("dart", 8), ("dart", 60))
        for name in ("step", "search")
        if (method, name) != ("plain", "search")
    ]


def test_layouts_of_devices():
    assert devices.ACCELERATORS["h200"].topology(8) == (1, 1, 8)
    assert devices.ACCELERATORS["v5e"].topology(1) == (2, 2)
    assert devices.ACCELERATORS["v5e"].topology(16) == (4, 4)


def test_without_the_devices_compiler(monkeypatch, capfd, tmp_path):
    def missing(**_):
        raise RuntimeError("Unknown backend cuda\nand more")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", missing)
    with pytest.raises(UserError, match=r"Unknown backend cuda; pip install 'dart-jax\[aot\]'$"):
        devices.compile_only("h200")
    with pytest.raises(SystemExit) as exit:
        main(["--device", "v6e", "--json", str(tmp_path / "report.json")])
    assert exit.value.code == 2
    assert "cannot compile for v6e" in capfd.readouterr().err
    assert not (tmp_path / "report.json").exists()
