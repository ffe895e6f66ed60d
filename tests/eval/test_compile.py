"""eval.compile: what it reads from compiled programs, and its programs, compiled for this CPU."""

import jax
import jax.numpy as jnp
import pytest

from dart_jax.errors import UserError
from eval.compile import devices
from eval.compile.cases import Case
from eval.compile.hlo import read_module, shape_size
from eval.compile.kernels import kernels
from eval.compile.program import CompileConfig, main
from eval.compile.report import details, launches, traffic
from eval.compile.summary import summarise


def compiled(function, *shapes, **options):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function, **options).lower(*arguments).compile().as_text()
    return read_module(text or "")


def test_sizes():
    assert shape_size("bf16[3,5]{1,0}") == 30
    assert shape_size("(f32[2]{0}, (s32[], pred[7]{0}))") == 8 + 4 + 7
    assert shape_size("token[]") == 0


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
    assert module.updated_in_place == 1
    assert sum(kernel.written for kernel in kernels(module)) == 4 * 8 * 64
    assert not any(kernel.kind == "copy" for kernel in kernels(module))
    copied = kernels(compiled(update, (1000, 64), (8, 64)))
    assert [kernel.written for kernel in copied if kernel.kind == "copy"] == [4 * 1000 * 64]


def test_a_slice_moves_what_it_takes():
    found = kernels(compiled(lambda x: jnp.sin(x[5:7]), (1000, 64)))
    assert sum(kernel.moved for kernel in found) == 2 * 4 * 2 * 64


def test_a_loop_counts_as_often_as_it_runs():
    def loop(x, w):
        return jax.lax.fori_loop(0, 9, lambda _, x: jnp.sin(x @ w), x)

    products = [k for k in kernels(compiled(loop, (4, 64), (64, 64))) if k.kind == "product"]
    assert [kernel.times for kernel in products] == [9]


def case(method, **settings):
    nodes = 0 if method == "plain" else 8
    given = {"batch": 2, "context": 50, "prompt": 16, "dtype": "float32"} | settings
    return Case("tiny", method, nodes, **given)


@pytest.fixture(scope="module")
def device():
    return jax.devices("cpu")[0]


@pytest.mark.parametrize("method", ["plain", "dart", "eagle3"])
def test_every_program_lowers(method, device):
    for program in ("prefill", "step", "loop"):
        assert case(method).lower(program, device).as_text()


def test_a_step(device):
    tiny = case("dart")
    summary = summarise(tiny, "step", tiny.lower("step", device).compile(), 1.0)
    state = 2 * 7 + 2  # keys and values of each layer, and of the drafter
    assert summary.updated_in_place >= state
    assert summary.of_a_layer >= 7  # as many products
    assert summary.by_kind["product"] >= 7 * tiny.config.target.num_hidden_layers
    assert "host" not in summary.by_kind
    assert summary.ratio is not None
    assert 1 < summary.ratio < 100
    content = summary.as_json()
    assert content["moved"] == sum(kernel.moved for kernel in summary.kernels)
    h200 = devices.ACCELERATORS["h200"]
    for grid in (traffic([summary], h200), launches([summary], h200), details(summary, 5)):
        assert grid.rows
        assert {len(row) for row in grid.rows} == {len(grid.columns)}
    assert len(details(summary, 5).rows) == 5


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
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(UserError, match=r"Unknown backend cuda; pip install 'dart-jax\[aot\]'$"):
        devices.compile_only("h200")
    with pytest.raises(SystemExit) as exit:
        main(["--device", "v6e", "--json", str(tmp_path / "report.json")])
    assert exit.value.code == 2
    assert "cannot compile for v6e" in capfd.readouterr().err
    assert not (tmp_path / "report.json").exists()
