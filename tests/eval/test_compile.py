"""eval.compile: what it reads from compiled programs, and its programs, compiled for this CPU."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from eval.compile import devices
from eval.compile.cases import Case
from eval.compile.check import Limits, violations
from eval.compile.graphs import parse_graphs, read_graphs
from eval.compile.hlo import Array, read_module, shape_size
from eval.compile.kernels import kernels
from eval.compile.program import CompileConfig, main
from eval.compile.report import care, details, launches, memory, outside_graphs, traffic
from eval.compile.summary import summarise

GPU = devices.ACCELERATORS["h200"].execution


def compiled(function, *shapes, **options):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function, **options).lower(*arguments).compile().as_text()
    return read_module(text or "")


def test_sizes():
    assert shape_size("bf16[3,5]{1,0}") == 30
    assert shape_size("(f32[2]{0}, (s32[], pred[7]{0}))") == 8 + 4 + 7
    assert shape_size("token[]") == 0
    assert shape_size("(f32[2]{0:T(128)S(1)}, f32[3]{0:T(128)})") == 12  # one is on the chip


def test_a_product_moves_its_operands_and_result():
    [product] = kernels(compiled(lambda x, w: x @ w, (8, 64), (64, 128)))
    assert product.kind == "product"
    assert (product.read, product.written) == (4 * (8 * 64 + 64 * 128), 4 * 8 * 128)
    assert product.arguments == product.read
    assert product.intermediate == product.written
    assert product.path == "dot_general"
    assert product.source.startswith("test_compile.py:")


def test_an_update_in_place_moves_what_it_writes():
    def update(cache, rows):
        return jax.lax.dynamic_update_slice(cache, rows, (3, 0))

    module = compiled(update, (1000, 64), (8, 64), donate_argnums=0)
    assert module.updated_in_place == [0]
    assert sum(kernel.written for kernel in kernels(module)) == 4 * 8 * 64
    assert not any(kernel.kind == "copy" for kernel in kernels(module))
    assert not any(kernel.copied for kernel in kernels(module))
    copied = kernels(compiled(update, (1000, 64), (8, 64)))
    assert [kernel.written for kernel in copied if kernel.kind == "copy"] == [4 * 1000 * 64]
    assert [kernel.copied for kernel in copied if kernel.kind == "copy"] == [
        (Array("f32", (1000, 64)),)
    ]


def test_a_slice_moves_what_it_takes():
    found = kernels(compiled(lambda x: jnp.sin(x[5:7]), (1000, 64)))
    assert sum(kernel.moved for kernel in found) == 2 * 4 * 2 * 64


def test_a_loop_counts_as_often_as_it_runs():
    def loop(x, w):
        return jax.lax.fori_loop(0, 9, lambda _, x: jnp.sin(x @ w), x)

    products = [k for k in kernels(compiled(loop, (4, 64), (64, 64))) if k.kind == "product"]
    assert [kernel.times for kernel in products] == [9]
    assert products[0].in_loop
    assert products[0].arguments == 4 * 64 * 64  # carried by the loop


# Modules by hand, in the form of those of GPUs and TPUs.


def module_of(entry, computations="", aliases=""):
    main = f"ENTRY %main (x: f32[]) -> f32[] {{\n{entry}\n}}\n"
    return read_module(f"HloModule jit_f{aliases}\n\n{computations}\n{main}")


CACHE = "bf16[2,100,16]{2,1,0}"
STATE = 'metadata={op_name="state.target_cache[3][0]"}'


def test_a_padded_cache_is_a_copy_of_it():
    pad = """%pad (p: bf16[2,100,16]) -> bf16[2,128,16] {
  %p = bf16[2,100,16]{2,1,0} parameter(0)
  %zero = bf16[] constant(0)
  ROOT %pad.1 = bf16[2,128,16]{2,1,0} pad(%p, %zero), padding=0_0x0_28x0_0
}
"""
    [kernel] = kernels(
        module_of(
            f"  %cache = {CACHE} parameter(0), {STATE}\n"
            "  ROOT %fusion = bf16[2,128,16]{2,1,0} fusion(%cache), kind=kLoop, calls=%pad",
            pad,
        )
    )
    assert kernel.copied == (Array("bf16", (2, 100, 16)),)
    assert (kernel.read, kernel.arguments, kernel.written) == (6400, 6400, 8192)
    assert kernel.path == "state/target_cache/layer_3/0/pad"  # what the compiler added, and to what


@pytest.mark.parametrize(
    ("to", "kind", "copies", "moved"),
    [
        ("{2,1,0:T(8,128)(2,1)}", "copy", 1, 12800),
        ("{2,1,0:T(8,128)(2,1)S(1)}", "prefetch", 0, 6400),
    ],
)
def test_copies_on_a_tpu(to, kind, copies, moved):
    cache = "bf16[2,100,16]{2,1,0:T(8,128)(2,1)}"
    [kernel] = kernels(
        module_of(
            f"  %cache = {cache} parameter(0)\n"
            f"  %start = (bf16[2,100,16]{to}, {cache}, u32[]{{:S(2)}}) copy-start(%cache)\n"
            f"  ROOT %done = bf16[2,100,16]{to} copy-done(%start)"
        )
    )
    assert (kernel.kind, len(kernel.copied), kernel.moved) == (kind, copies, moved)


@pytest.mark.parametrize(
    ("to", "kind", "moved"),
    [("{1,0:T(8,128)S(1)}", "prefetch", 4 * 16 * 2), ("{1,0:T(8,128)}", "copy", 2 * 4 * 16 * 2)],
)
def test_a_part_that_is_brought_on_the_chip(to, kind, moved):
    """Of the operand only what is taken is read."""
    whole, part = "bf16[64,16]{1,0:T(8,128)}", f"bf16[4,16]{to}"
    [kernel] = kernels(
        module_of(
            f"  %weights = {whole} parameter(0)\n"
            f"  %start = (({whole}), {part}, s32[]{{:S(2)}}) slice-start(%weights), "
            "slice={[0:4], [0:16]}\n"
            f"  ROOT %done = {part} slice-done(%start)"
        )
    )
    assert (kernel.kind, kernel.moved) == (kind, moved)


def test_rows_of_a_table_that_are_converted():
    """A fusion converts no more than it takes."""
    rows = """%rows (t: bf16[1000,64], i: s32[2,1]) -> f32[2,64] {
  %t = bf16[1000,64]{1,0} parameter(0)
  %i = s32[2,1]{1,0} parameter(1)
  %c = f32[1000,64]{1,0} convert(%t)
  ROOT %g = f32[2,64]{1,0} gather(%c, %i), offset_dims={1}, slice_sizes={1,64}
}
"""
    argument = "metadata={op_name=\"params['target']['embed_tokens']\"}"
    [kernel] = kernels(
        module_of(
            f"  %table = bf16[1000,64]{{1,0}} parameter(0), {argument}\n"
            "  %at = s32[2,1]{1,0} parameter(1)\n"
            "  ROOT %fusion = f32[2,64]{1,0} fusion(%table, %at), kind=kLoop, calls=%rows",
            rows,
        )
    )
    assert (kernel.read, kernel.weights) == (2 * 64 * 2 + 8, 2 * 64 * 2)


@pytest.mark.parametrize(
    ("given", "read", "written"),
    [
        ("", 6400 + 64, 64),
        ("output_to_operand_aliasing={{}: (1, {})}", 6400 + 64, 0),
        ("output_to_operand_aliasing={{}: (0, {})}", 64 + 64, 0),
        (
            'backend_config={"custom_call_config":{"cost_estimate":{"flops":"9","bytes_accessed":"500"}}}',
            436,
            64,
        ),
    ],
)
def test_bytes_of_custom_calls(given, read, written):
    [kernel] = kernels(
        module_of(
            f"  %cache = {CACHE} parameter(0)\n  %q = bf16[2,16]{{1,0}} parameter(1)\n"
            "  ROOT %call = bf16[2,16]{1,0} custom-call(%cache, %q), "
            f'custom_call_target="__gpu$xla.gpu.triton", {given}'
        )
    )
    assert (kernel.kind, kernel.read, kernel.written) == ("custom", read, written)
    assert kernel.arguments == read


@pytest.mark.parametrize(("target", "share"), [("__gpu$xla.gpu.triton", 0.25), ("other", 1)])
def test_a_triton_kernel_reads_the_chosen_experts(target, share):
    experts = Array("bf16", (8, 64, 16))
    module = module_of(
        "  %experts = bf16[8,64,16]{2,1,0} parameter(0)\n  %x = bf16[2,64]{1,0} parameter(1)\n"
        f'  ROOT %call = bf16[2,16]{{1,0}} custom-call(%experts, %x), custom_call_target="{target}"'
    )
    [kernel] = kernels(module, None, {experts: 0.25})
    assert (kernel.read, kernel.written) == (share * experts.size + 256, 64)


def test_the_share_of_the_experts():
    case = Case("qwen3-30b-a3b", "dart", 8, 1, 100, 8, execution=GPU)
    shares = case.read_in_part("step")
    assert {array.lengths for array in shares} == {(128, 2048, 768), (128, 768, 2048)}
    assert set(shares.values()) == {1 - (15 / 16) ** 9}
    assert case.read_in_part("prefill") == {}
    assert Case("tiny", "dart", 8, 1, 100, 8).read_in_part("step") == {}


LOOP = """%body (arg: (s32[], bf16[2,100,16])) -> (s32[], bf16[2,100,16]) {
  %arg = (s32[], bf16[2,100,16]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %cache = bf16[2,100,16]{2,1,0} get-tuple-element(%arg), index=1
  %found = s32[] custom-call(%i), custom_call_target="xla_ffi_python_gpu_callback"
  %copy = bf16[2,100,16]{2,1,0} copy(%cache)
  ROOT %t = (s32[], bf16[2,100,16]{2,1,0}) tuple(%found, %copy)
}

%condition (arg: (s32[], bf16[2,100,16])) -> pred[] {
  %arg.1 = (s32[], bf16[2,100,16]{2,1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %limit = s32[] constant(9)
  ROOT %compare = pred[] compare(%i.1, %limit), direction=LT
}
"""


def test_what_a_loop_carries_and_does():
    found = kernels(
        module_of(
            f"  %x = s32[] parameter(0)\n  %cache.1 = {CACHE} parameter(1), {STATE}\n"
            f"  %first = (s32[], {CACHE}) tuple(%x, %cache.1)\n"
            f"  ROOT %while = (s32[], {CACHE}) while(%first), condition=%condition, body=%body",
            LOOP,
        )
    )
    assert [(kernel.kind, kernel.in_loop) for kernel in found] == [
        ("compare", True),
        ("host", True),
        ("copy", True),
    ]
    assert found[-1].copied == (Array("bf16", (2, 100, 16)),)
    assert found[-1].path == "state/target_cache/layer_3/0/copy"


def test_arguments_that_share_memory_with_results():
    aliases = ", input_output_alias={ {0}: (7, {}, may-alias), {1}: (12, {}, must-alias) }"
    module = module_of(f"  ROOT %cache = {CACHE} parameter(7)", aliases=aliases)
    assert module.updated_in_place == [7, 12]
    assert module.arguments() == {7: Array("bf16", (2, 100, 16))}


def test_the_source_is_the_innermost_place_in_this_package():
    tables = """FileNames
1 "/home/x/site-packages/dart_jax/models/layers.py"
2 "/home/x/site-packages/flax/nnx.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=42 end_line=42}
2 {file_name_id=2 function_name_id=1 line=7 end_line=7}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=2 parent_frame_id=0}
"""
    module = module_of(f"  ROOT %x = {CACHE} parameter(0)", tables)
    assert module.frames == {1: "layers.py:42", 2: "layers.py:42", 3: "nnx.py:7"}


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


def described(*thunks):
    return "".join(
        f'thunk_metadata {{\n  thunk_info {{\n    profile_annotation: "{name}"\n'
        f'    thunk_id: {number}\n  }}\n  thunk_kind: "{kind}"\n}}\n'
        for number, name, kind in thunks
    )


THUNKS = described(
    (0, "command_buffer_1", "kCommandBuffer"),
    (1, "fusion", "kCustomKernel"),
    (2, "fusion", "kCustomKernel"),
    (3, "copy.1", "kCopy"),
    (4, "while.1", "kWhile"),
    (5, "compare", "kCustomKernel"),
    (6, "callback", "kCustomCall"),
    (7, "dot", "kCustomKernel"),
)


def test_what_is_in_cuda_graphs(tmp_path):
    graphs = parse_graphs(SCHEDULE, THUNKS)
    assert graphs.count == 2
    assert graphs.inside == {"fusion", "copy.1", "dot"}
    assert graphs.launches == {"fusion": 2, "copy.1": 1, "compare": 1, "callback": 1, "dot": 1}
    assert read_graphs(tmp_path) is None
    (tmp_path / "module_1.jit_f.thunk_sequence_after_thunk_passes.txt").write_text(SCHEDULE)
    (tmp_path / "module_1.jit_f.thunk_metadata.txt").write_text(THUNKS)
    assert read_graphs(tmp_path) == graphs


def test_a_sort_of_many_passes():
    sort = """%sorting (p: f32[8,5000]) -> f32[8,5000] {
  %p = f32[8,5000]{1,0} parameter(0)
  ROOT %sort = f32[8,5000]{1,0} sort(%p), dimensions={1}, to_apply=%less
}
"""
    module = module_of(
        "  %x = f32[8,5000]{1,0} parameter(0)\n"
        "  ROOT %fusion = f32[8,5000]{1,0} fusion(%x), kind=kCustom, calls=%sorting",
        sort,
    )
    [kernel] = kernels(module, {"fusion": 3})
    assert (kernel.kind, kernel.sorted, kernel.launches) == ("sort", 5000, 3)
    assert kernel.moved == 3 * 2 * 4 * 8 * 5000


# The programs.


def case(method, shape="tiny", **settings):
    nodes = 0 if method == "plain" else 8
    given = {"batch": 2, "context": 50, "prompt": 16, "dtype": "float32"} | settings
    return Case(shape, method, nodes, **given)


@pytest.fixture(scope="module")
def device():
    return jax.devices("cpu")[0]


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("method", ["plain", "dart", "eagle3"])
def test_every_program_lowers(method, device):
    for program in ("prefill", "step", "loop", "serve"):
        assert case(method).lower(program, device).as_text()


@pytest.fixture(scope="module")
def summary(device, tmp_path_factory):
    tiny = case("dart")
    program = tiny.lower("step", device).compile()
    return summarise(tiny, "step", program, 1.0, tmp_path_factory.mktemp("dump"))


@pytest.mark.long(ci=1)
@pytest.mark.parametrize("method", ["plain", "dart"])
def test_a_step_reads_half_of_the_weights_in_8_bits(method, device, tmp_path):
    """What the compiled programs read of the weights, and what they must, by the shapes."""
    read, needed = [], []
    for rounded in (False, True):
        execution = Execution(rounded=rounded)
        demo = case(method, shape="demo", dtype="bfloat16", execution=execution, layers=7)
        found = summarise(demo, "step", demo.lower("step", device).compile(), 1.0, tmp_path)
        assert demo.weights == ("int8" if rounded else "stored")
        assert demo.weights_needed <= found.weights_read < 1.02 * demo.weights_needed
        read.append(found.weights_read)
        assert found.least is not None
        needed.append(found.least.bytes - demo.weights_needed)
    assert read[1] <= 0.55 * read[0]
    assert needed[0] == needed[1]  # beside the weights


def test_an_eagle3_step_reads_its_drafter_in_8_bits_again_and_again():
    eight, sixteen = (
        case("eagle3", dtype="bfloat16", execution=Execution(rounded=rounded))
        for rounded in (True, False)
    )
    saved = [x.least("step").bytes - x.weights_needed for x in (sixteen, eight)]
    assert saved[0] > saved[1]
    assert eight.least("step").bytes < 0.6 * sixteen.least("step").bytes


def test_a_step_in_pages(device, tmp_path_factory):
    """Its pools are updated in place."""
    tiny = case("dart")
    program = tiny.lower("serve", device).compile()
    found = summarise(tiny, "serve", program, 1.0, tmp_path_factory.mktemp("dump"))
    assert found.updated_in_place >= 2 * 7 + 2
    assert found.caches_not_in_place == 0


def test_a_step(summary):
    target = summary.case.config.target
    state = 2 * 7 + 2  # keys and values of each layer, and of the drafter
    assert summary.updated_in_place >= state
    assert summary.caches_not_in_place == 0
    assert summary.of_a_layer >= 7  # as many products
    assert summary.per_layer * target.num_hidden_layers == pytest.approx(summary.launches)
    assert summary.by_kind["product"] >= 7 * target.num_hidden_layers
    assert summary.host(in_loop=False) == summary.host(in_loop=True) == 0
    assert summary.ratio is not None
    assert 1 < summary.ratio < 100
    assert summary.arguments <= summary.peak
    assert summary.graphs is summary.in_graphs is None
    content = summary.as_json()
    assert content["moved"] == sum(kernel.moved for kernel in summary.kernels)


@pytest.mark.long
def test_tables_fit_into_80_columns(summary):
    schedule = parse_graphs(SCHEDULE, THUNKS)
    on_gpu = dataclasses.replace(summary, graphs=schedule)
    other = dataclasses.replace(
        on_gpu, case=dataclasses.replace(summary.case, shape="qwen3-0.6b", batch=32, nodes=60)
    )
    h200 = devices.ACCELERATORS["h200"]
    grids = [grid([on_gpu, other], h200) for grid in (traffic, launches, memory, care)]
    for grid in (*grids, details(summary, 5)):
        assert grid.rows
        assert {len(row) for row in grid.rows} == {len(grid.columns)}
        widths = [max(map(len, cells)) for cells in zip(grid.columns, *grid.rows, strict=True)]
        assert sum(widths) + 2 * (len(widths) - 1) + 2 <= 80, grid.columns
    assert len(details(summary, 5).rows) == 5
    assert "tree" in grids[0].columns
    assert "context 50" in grids[0].title
    # None of these kernels is in the schedule.
    assert on_gpu.in_graphs == 0
    assert "more" in outside_graphs(on_gpu)
    assert outside_graphs(summary) == ""


def with_kernel(summary, **changed):
    """The step with one kernel more."""
    kernel = dataclasses.replace(summary.kernels[0], times=1, copied=(), sorted=0)
    return dataclasses.replace(
        summary, kernels=[*summary.kernels, dataclasses.replace(kernel, **changed)]
    )


def test_checks(summary):
    def found(summary, **limits):
        return [line.partition(": ")[2] for line in violations(summary, Limits(**limits))]

    assert found(summary) == []
    assert found(summary, kernels_a_layer=summary.of_a_layer, ratio=summary.ratio) == []
    [layer, ratio] = found(summary, kernels_a_layer=3, ratio=1)
    assert "more than 3" in layer
    assert "of those needed" in ratio
    caches = tuple(summary.case.caches)[:1]
    assert found(with_kernel(summary, kind="copy", copied=caches)) == ["1 copies of caches"]
    assert found(with_kernel(summary, kind="prefetch", copied=caches)) == []
    assert "whole vocabulary" in found(with_kernel(summary, kind="sort", sorted=10**6))[0]
    assert found(dataclasses.replace(summary, caches_not_in_place=2)) == [
        "2 caches are not updated in place"
    ]
    # A search on the host exchanges data in the loop; EAGLE-3 has none.
    transfer = with_kernel(summary, kind="host", in_loop=True)
    assert "in a loop" in found(transfer)[0]
    loop = dataclasses.replace(transfer, program="loop")
    assert found(loop) == []
    assert "in a loop" in found(dataclasses.replace(loop, case=case("eagle3")))[0]


def test_settings():
    config = CompileConfig(method=("plain", "dart"), tree_nodes=(8, 60), batch_size=(1, 32))
    assert [(c.method, c.batch, c.nodes) for c in config.cases()] == [
        ("plain", 1, 0),
        ("dart", 1, 8),
        ("dart", 1, 60),
        ("plain", 32, 0),
        ("dart", 32, 8),
        ("dart", 32, 60),
    ]


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
