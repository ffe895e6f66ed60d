"""The training loop: exact resumption after any interruption, and its files."""

import dataclasses
import errno
import gc
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_training import (
    PROGRAM,
    RECIPE,
    WIDTH,
    ToyBatches,
    plain_loss,
    records,
    toy_evaluate,
    toy_fit,
    toy_frozen,
    toy_loss,
    toy_params,
)

from dart_jax.errors import UserError
from dart_jax.files import writing
from train.run.checkpoints import whole_steps
from train.run.optimizer import OptimizerConfig, learning_rate, make_optimizer

ENVIRONMENT = {**os.environ, "JAX_DEFAULT_MATMUL_PRECISION": "highest"}


class Interrupted(Exception):
    """Stands for a killed process."""


@dataclasses.dataclass(frozen=True)
class Failing(ToyBatches):
    """Data whose reading fails at one step."""

    at: int = 0

    def __call__(self, step, rows):
        if step == self.at:
            raise Interrupted
        return super().__call__(step, rows)


def bits(params):
    return {name: np.asarray(leaf).tobytes() for name, leaf in params.items()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The parameters and the directory of a run; the caller keeps what it gave."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    params, frozen = toy_params(), toy_frozen()
    trained = toy_fit(directory, params=params, frozen=frozen)
    assert bits(params) == bits(toy_params())
    assert not frozen["rotation"].is_deleted()
    return trained, directory


@pytest.fixture
def half_way(uninterrupted, tmp_path):
    """A run that stopped after its checkpoint of step 10."""
    directory = tmp_path / "run"
    shutil.copytree(uninterrupted[1], directory)
    shutil.rmtree(directory / "checkpoints" / "12")
    return directory


# What is computed


def test_it_learns_and_tells(uninterrupted):
    _, directory = uninterrupted
    told = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in told] == list(range(1, 13))
    assert told[-1]["loss"] < 0.75 * told[0]["loss"]
    assert [record["step"] for record in told if "norm" in record] == [6, 12]
    assert told[5]["tokens_per_second"] == pytest.approx(8 * WIDTH / told[5]["seconds"], rel=1e-3)
    assert whole_steps(directory / "checkpoints") == [10, 12]  # the newest two


def test_the_loss_is_the_mean_over_what_counts_in_all_microbatches(tmp_path):
    runs = []
    for parts in (1, 4):
        recipe = dataclasses.replace(RECIPE, steps=6, accumulate=parts)
        params = toy_fit(tmp_path / str(parts), recipe, loss=plain_loss)
        losses = [record["loss"] for record in records(tmp_path / str(parts))]
        runs.append((losses, jax.tree.map(np.asarray, params)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *runs)
    batch = ToyBatches(8)(0, slice(None))
    assert 0 < batch["counts"].sum() < 8
    params = {name: np.asarray(leaf, np.float64) for name, leaf in toy_params().items()}
    out = np.tanh(batch["x"] @ params["up"] + params["bias"]) @ params["down"]
    errors = ((out - batch["y"]) ** 2).sum(axis=1)[batch["counts"]]
    assert runs[0][0][0] == pytest.approx(errors.mean(), rel=1e-5)


def test_bfloat16_keeps_float32_parameters(uninterrupted, tmp_path):
    seen = set()

    def loss(params, frozen, batch, key):
        seen.update(leaf.dtype for leaf in jax.tree.leaves(params))
        return toy_loss(params, frozen, batch, key)

    # Steps so small that bfloat16 would lose every one of them.
    recipe = dataclasses.replace(RECIPE, steps=6, dtype="bfloat16", lr=1e-5, warmup=0.0)
    params = toy_fit(tmp_path, recipe, loss=loss, evaluate=None)
    assert seen == {jnp.dtype("bfloat16")}
    for name, leaf in params.items():
        assert leaf.dtype == jnp.float32
        moved = np.abs(np.asarray(leaf - toy_params()[name]))
        assert 0 < moved.max() < 1.5e-4
        assert (moved > 0).mean() > 0.9
    first, exact = records(tmp_path)[0]["loss"], records(uninterrupted[1])[0]["loss"]
    assert first == pytest.approx(exact, rel=1e-2)
    assert first != exact


def test_matrices_alone_decay():
    config, params = OptimizerConfig(weight_decay=0.1), toy_params()
    optimizer, nothing = make_optimizer(config), jax.tree.map(jnp.zeros_like, params)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes types
        updates, _ = jax.jit(optimizer.update)(nothing, optimizer.init(params), params)
    for name, factor in {"up": -0.1, "down": -0.1, "bias": 0}.items():
        np.testing.assert_allclose(updates[name], params[name] * factor, rtol=1e-5)


def test_muon_orthogonalises_hidden_matrices_and_leaves_the_rest_to_adamw():
    random = np.random.default_rng(0)
    shapes = {"proj": (16, 16), "embed_tokens": (32, 16), "lm_head": (16, 32), "norm": (16,)}
    params = {name: jnp.asarray(random.normal(size=s), jnp.float32) for name, s in shapes.items()}
    gradients = {n: jnp.asarray(random.normal(size=s), jnp.float32) for n, s in shapes.items()}

    def updates(optimizer):
        made = make_optimizer(OptimizerConfig(optimizer, lr=1.0, warmup=0, clip=1e9))
        return jax.jit(made.update)(gradients, made.init(params), params)[0]

    with jax.numpy_dtype_promotion("standard"):  # optax mixes types
        muon, adamw = updates("muon"), updates("adamw")
    for name in ("embed_tokens", "lm_head", "norm"):
        ratio = muon[name] / adamw[name]  # optax's Muon looks ahead (Nesterov) in both parts
        np.testing.assert_allclose(ratio, ratio.ravel()[0], rtol=1e-3)
    values = np.linalg.svd(np.asarray(muon["proj"]), compute_uv=False)
    raw = np.linalg.svd(np.asarray(gradients["proj"]), compute_uv=False)
    assert values.max() / values.min() < 2.5 < raw.max() / raw.min()
    assert 0.1 < np.sqrt(np.mean(np.square(muon["proj"]))) < 0.3  # as large as AdamW's, times 0.2


@pytest.mark.parametrize(
    ("steps", "warmup", "final_lr"), [(1, 0.0, 0.0), (40, 0.3, 0.1), (400, 0.03, 0.0)]
)
def test_learning_rate(steps, warmup, final_lr):
    config = OptimizerConfig(lr=2.0, warmup=warmup, final_lr=final_lr)
    rates = jax.vmap(lambda step: learning_rate(config, step, steps))(jnp.arange(steps + 1))
    rising = round(warmup * steps)
    assert rates.max() == rates[rising] == pytest.approx(2)
    np.testing.assert_allclose(rates[:rising], 2 * np.arange(1, rising + 1) / max(rising, 1), 1e-5)
    assert (np.diff(rates[rising:]) <= 1e-6).all()
    assert rates[steps] == pytest.approx(2 * final_lr, abs=1e-5)


def test_training_for_a_time(tmp_path, monkeypatch, capsys):
    """The learning rate falls with the time, to its end; an interrupted run trains for the rest."""

    def fit(directory, **arguments):
        """Trains by a clock by which every look at it takes a second."""
        ticks = itertools.count()
        clock = types.SimpleNamespace(monotonic=lambda: float(next(ticks)))
        monkeypatch.setattr("train.run.report.time", clock)
        return toy_fit(directory, recipe, **arguments)

    recipe = dataclasses.replace(RECIPE, steps=None, minutes=0.5, save_every=2)
    trained = fit(tmp_path / "whole")
    told = records(tmp_path / "whole")
    assert 5 < len(told) < 30
    rates = [record["lr"] for record in told]
    assert rates[0] == pytest.approx(learning_rate(recipe, jnp.int32(0), 1_000_000))
    at_end = float(learning_rate(recipe, jnp.int32(1_000_000), 1_000_000))
    top = rates.index(max(rates))
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert at_end <= rates[-1] < at_end + recipe.lr / 4
    line = r" step \d+, 0\.5 of 0\.5 min, loss \d+\.\d+, [\d,]+ tokens/s"
    assert re.search(line, capsys.readouterr().err)
    assert bits(fit(tmp_path / "whole")) == bits(trained)  # nothing is left
    with pytest.raises(Interrupted):
        fit(tmp_path / "parts", batches=Failing(8, at=5))
    fit(tmp_path / "parts")
    assert abs(len(records(tmp_path / "parts")) - len(told)) <= 3
    recipe = dataclasses.replace(recipe, minutes=0.6)
    with pytest.raises(UserError, match="--minutes"):
        fit(tmp_path / "parts")


# Going on


def test_resuming_is_exact(uninterrupted, tmp_path):
    params, directory = uninterrupted
    with pytest.raises(Interrupted):
        toy_fit(tmp_path, batches=Failing(8, at=8))
    assert records(tmp_path) == records(directory)[:8]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')  # the write that was killed
    assert bits(toy_fit(tmp_path)) == bits(params)
    assert records(tmp_path) == records(directory)
    # A finished run is only read.
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert bits(toy_fit(tmp_path, batches=Failing(8))) == bits(params)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


# Where a checkpoint cannot be read to its end, orbax drops the reads that were under way; Python
# tells of them when they are collected, which the test waits for.
@pytest.mark.filterwarnings(
    "ignore:.*:pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"
)
def test_what_is_damaged_is_named_and_what_is_unfinished_passed_over(
    uninterrupted, half_way, capsys
):
    params, directory = uninterrupted
    checkpoints = half_way / "checkpoints"
    shutil.copytree(checkpoints / "10", checkpoints / "11")
    for path in (checkpoints / "11").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            os.truncate(path, path.stat().st_size // 2)
    shutil.copytree(checkpoints / "10", checkpoints / "12.orbax-checkpoint-tmp")
    with pytest.raises(UserError, match=rf"checkpoint {checkpoints / '11'} cannot be read: .* del"):
        toy_fit(half_way)
    shutil.rmtree(checkpoints / "11")
    assert bits(toy_fit(half_way)) == bits(params)
    assert records(half_way) == records(directory)
    assert not list(checkpoints.glob("*tmp*"))
    assert "toy: resuming from the checkpoint of step 10" in capsys.readouterr().err
    gc.collect()


def test_two_runs_do_not_share_a_directory(tmp_path):
    def evaluate(params):
        with pytest.raises(UserError, match="another run is training in"):
            toy_fit(tmp_path)
        return {"tried": 1.0}

    toy_fit(tmp_path, dataclasses.replace(RECIPE, steps=2), evaluate=evaluate)
    assert records(tmp_path)[-1]["tried"] == 1


def test_other_settings_are_refused(half_way):
    for recipe, arguments, told in [
        (dataclasses.replace(RECIPE, lr=0.5), {}, r"another --lr \(0\.01, now 0\.5\)"),
        (RECIPE, {"batches": ToyBatches(8, seed=1)}, r"another --data \(toy 0, now toy 1\)"),
        (RECIPE, {"settings": {"gamma": 0.6}}, r"another --gamma \(unset, now 0\.6\)"),
    ]:
        before = (half_way / "metrics.jsonl").read_bytes()
        with pytest.raises(UserError, match=told):
            toy_fit(half_way, recipe, **arguments)
        assert (half_way / "metrics.jsonl").read_bytes() == before


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_end(uninterrupted, tmp_path, capsys, number):
    params, directory = uninterrupted

    def evaluate(params):
        os.kill(os.getpid(), number)
        return toy_evaluate(params)

    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as end:
        toy_fit(tmp_path, evaluate=evaluate)
    assert end.value.code == 128 + number
    assert signal.getsignal(number) == before
    assert "stopped; step 6 is saved, run the same command to resume" in capsys.readouterr().err
    assert whole_steps(tmp_path / "checkpoints") == [5, 6]
    assert bits(toy_fit(tmp_path)) == bits(params)
    assert records(tmp_path) == records(directory)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Bad(ToyBatches):
        def __call__(self, step, rows):
            batch = super().__call__(step, rows)
            return batch | {"y": batch["y"] * np.float32(np.inf)} if step == 7 else batch

    message = "in step 8 of toy the loss is inf and the gradient norm is nan; "
    with pytest.raises(UserError, match=message):
        toy_fit(tmp_path, batches=Bad(8))
    assert whole_steps(tmp_path / "checkpoints") == [5, 6]
    assert len(records(tmp_path)) == 7


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": 0}, "--steps must be at least 1"),
        ({"warmup": 1.5}, "--warmup 1.5 must be at least 0 and below 1"),
        ({"lr": np.inf}, "--lr must be a finite number above 0, got inf"),
        ({"clip": np.nan}, "--clip must be above 0, got nan"),
        ({"final_lr": -0.1}, "--final-lr must be a fraction of --lr, 0 to 1, got -0.1"),
        ({"weight_decay": -1.0}, "--weight-decay must be at least 0"),
        ({"seed": 2**32}, r"--seed must be in 0\.\.4294967295, got 4294967296"),
        ({"accumulate": 3}, "a batch of 8 rows does not divide into 3 microbatches"),
    ],
)
def test_options_out_of_range(tmp_path, change, told):
    with pytest.raises(UserError, match=told):
        toy_fit(tmp_path / "run", dataclasses.replace(RECIPE, **change))
    assert not (tmp_path / "run").exists()


# The disk


@pytest.mark.long
def test_no_room_for_a_checkpoint(uninterrupted, half_way):
    """No file may grow beyond 64 KB, as if the disk were full then; a checkpoint's would."""
    limited = ["bash", "-c", 'ulimit -f 64; exec "$@"', "-", *PROGRAM, "--directory", str(half_way)]
    environment = {**ENVIRONMENT, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    ended = subprocess.run(limited, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    *progress, error = ended.stderr.splitlines()
    assert all("toy" in line for line in progress)
    assert error.startswith(f"error: cannot write a checkpoint in {half_way}")
    assert os.strerror(errno.EFBIG) in error
    assert error.endswith("the checkpoint of step 10 still loads")
    params, directory = uninterrupted
    assert bits(toy_fit(half_way)) == bits(params)
    assert records(half_way) == records(directory)


def test_no_room_for_metrics(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"cannot write metrics in .*: No space left on device"):
        toy_fit(tmp_path)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("RESOURCE_EXHAUSTED: [os_error_code='28']"), "No space left on device"),
        (TimeoutError(), "another process did not"),
    ],
)
def test_errors_of_libraries_that_write(tmp_path, error, told):
    with pytest.raises(UserError, match=told), writing("it", tmp_path):
        raise error
    with pytest.raises(ValueError, match="not the disk's"), writing("it", tmp_path):
        raise ValueError("not the disk's")
