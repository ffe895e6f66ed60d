"""`train.drafter`: from data to a drafter that decodes."""

import dataclasses
import json
import math
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiny_model
from decoding import decode
from toy_training import run_together

from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.models.config import MoEConfig
from dart_jax.models.drafter_config import DartConfig, Eagle3Config
from dart_jax.models.networks.pure import bind, init_params
from dart_jax.models.rope import Rope
from dart_jax.weights.checkpoint import (
    load_drafter,
    load_target,
    read_any_drafter_config,
    save_target,
)
from train.data.packed_dataset import PackedBatches, PackedDataset
from train.drafter import DrafterTraining, train
from train.objective.predictions import Frozen, PackedForward
from train.run.checkpoints import whole_steps
from train.run.config_file import parse
from train.run.mesh import make_mesh
from train.teacher.outputs import cached_outputs
from train.teacher.teacher import Teacher

STEPS = 6


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def answers(tiny, tmp_path_factory):
    """The tiny target's answers, as `train.regenerate` writes them."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    model = DartModel.from_pretrained(tiny.target)
    prompts = [tiny.prompts[i % 3][: 4 + i] for i in range(24)]
    made = decode(model, prompts, 40, max_length=96, stop=()).tokens
    rows = [
        {"tokens": [*map(int, prompt), *map(int, tokens)], "prompt_length": len(prompt)}
        for prompt, tokens in zip(prompts, made, strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="session")
def recipe_file(tiny, answers, tmp_path_factory):
    """The settings that all runs share."""
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(f"""
target = "{tiny.target}"
[data]
data = ["{answers}"]
context = 64
held_out = 4
[drafter]
positions = 4
[trainer]
steps = {STEPS}
batch_size = 4
lr = 3e-3
warmup = 0
save_every = 2
eval_every = 3
[acceptance]
eval_rows = 2
eval_prompts = 2
eval_new_tokens = 8
""")
    return path


@pytest.fixture(scope="session")
def recipe(recipe_file):
    """Makes a run's settings from the recipe and further options."""

    def make(out, *options):
        args = ["--config", str(recipe_file), "--out", str(out), *map(str, options)]
        return parse(DrafterTraining, args, None)

    return make


def metrics(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def trained(recipe, tiny, tmp_path_factory):
    """A run with cached target outputs, a draft vocabulary and an n-gram model."""
    out = tmp_path_factory.mktemp("trained") / "run"
    config = recipe(out, "--teacher", "cached", "--draft-vocab", 200, "--ngram", tiny.ngram)
    return config, train(config)


def test_a_run_leaves_a_drafter_that_decodes(trained, tiny):
    _, drafter = trained
    found = read_any_drafter_config(drafter)
    assert isinstance(found, DartConfig)
    assert (found.num_positions, found.draft_vocab_size) == (4, 200)
    assert "shifted" not in json.loads((drafter / "config.json").read_text())
    model = DartModel.from_pretrained(tiny.target, drafter, tiny.ngram)
    text = model.generate(list(map(int, tiny.prompts[0])), max_new_tokens=16)
    plain = DartModel.from_pretrained(tiny.target).generate(
        list(map(int, tiny.prompts[0])), max_new_tokens=16
    )
    assert text.tokens.tolist() == plain.tokens.tolist()


def test_what_a_run_tells(trained):
    config, _ = trained
    records = metrics(config.out)
    assert [record["step"] for record in records] == [*range(1, STEPS + 1)]
    assert records[-1]["loss"] < 0.9 * records[0]["loss"]
    told = [record for record in records if "tau" in record]
    assert [record["step"] for record in told] == [3, 6]
    for record in told:
        assert all(0 <= record[f"alpha_{t}"] <= 1 for t in range(1, 5))
        assert record["tau"] >= 1
        assert record["tau_without_ngram"] >= 1
    assert told[1]["held_out_loss"] < told[0]["held_out_loss"]


def test_a_finished_run_is_trained_no_further(trained):
    config, drafter = trained
    before = metrics(config.out), (drafter / "model.safetensors").read_bytes()
    assert train(config) == drafter
    assert (metrics(config.out), (drafter / "model.safetensors").read_bytes()) == before


def test_what_is_kept_of_the_teacher(trained, tiny):
    """Equals what the target computes online, rounded to bfloat16."""
    config, _ = trained
    [directory] = (config.out / "features").iterdir()
    dataset = PackedDataset.load(config.out / "data", "training")
    target, params = load_target(tiny.target)
    numbers = np.arange(dataset.rows)
    forward = PackedForward(target, config.drafter.config(target), 4)
    data = jax.jit(forward.run_target)(Frozen(params, jnp.arange(300)), dataset.batch(numbers))
    for name in ("features", "hidden"):
        kept, expected = np.fromfile(directory / name, ml_dtypes.bfloat16), data.outputs
        expected = getattr(expected, name)
        kept = kept.astype(np.float32).reshape(expected.shape)
        np.testing.assert_allclose(kept, expected, rtol=1e-2, atol=1e-4)
    # What is kept of the logits fits the hidden states that are kept.
    logits = bind(target, params).logits(jnp.asarray(kept))
    total, best = (np.fromfile(directory / n, d) for n, d in (("log_total", "f4"), ("best", "i4")))
    expected = jax.nn.logsumexp(logits, axis=-1)
    np.testing.assert_allclose(total, expected.reshape(-1), rtol=0, atol=1e-5)
    assert (best == logits.argmax(-1).reshape(-1)).all()


def test_filling_the_cache_goes_on_where_it_ended(trained, tiny, tmp_path):
    config, _ = trained
    shutil.copytree(config.out / "features", tmp_path / "features")
    [directory] = (tmp_path / "features").iterdir()
    dataset = PackedDataset.load(config.out / "data", "training")
    teacher = Teacher.load(tiny.target, np.dtype("float32"), make_mesh())
    names = ("features", "hidden", "log_total", "best")
    whole = [(directory / name).read_bytes() for name in names]
    for name, kept in zip(names, whole, strict=True):
        row = len(kept) // dataset.rows
        # The first row is not computed again, whatever it holds; others from the fourth on are.
        (directory / name).write_bytes(
            bytes(row) + kept[row : 3 * row] + bytes(len(kept) - 3 * row)
        )
    (directory / "done.json").write_text(json.dumps({"rows": 3}))
    cached_outputs(teacher, dataset, tmp_path / "features")
    for name, kept in zip(names, whole, strict=True):
        row = len(kept) // dataset.rows
        assert (directory / name).read_bytes() == bytes(row) + kept[row:]
    # A file that is not whole is made again, and so are the others.
    (directory / "hidden").write_bytes(b"cut")
    cached_outputs(teacher, dataset, tmp_path / "features")
    assert [(directory / name).read_bytes() for name in names] == whole


class Interrupted(Exception):
    """Stands for a killed process."""


@pytest.mark.long
def test_an_interrupted_run_goes_on_exactly(recipe, trained, tmp_path, monkeypatch):
    """With cached target outputs, and anchors drawn at random every step."""
    options = ("--cache", trained[0].out, "--teacher", "cached", "--anchors", 8)
    options += ("--eval-rows", 0, "--eval-prompts", 0)
    read = PackedBatches.__call__

    def failing(batches, step, rows):
        if step == 5:
            raise Interrupted
        return read(batches, step, rows)

    config = recipe(tmp_path / "run", *options)
    with monkeypatch.context() as patch:
        patch.setattr(PackedBatches, "__call__", failing)
        with pytest.raises(Interrupted):
            train(config)
    # The last step that was done is done again: the newest checkpoint is of the one before.
    assert [record["step"] for record in metrics(config.out)] == [*range(1, 6)]
    assert whole_steps(config.out / "checkpoints")[-1] == 4
    whole = train(recipe(tmp_path / "whole", *options))
    assert (train(config) / "model.safetensors").read_bytes() == (
        whole / "model.safetensors"
    ).read_bytes()
    ours, theirs = metrics(config.out), metrics(tmp_path / "whole")
    assert len(ours) == STEPS
    for name in ("step", "loss", "grad_norm", "lr"):
        assert [record[name] for record in ours] == [record[name] for record in theirs]


@pytest.mark.long
def test_pair_scores_alone(recipe, trained, tiny, tmp_path):
    """Everything else stays as it is in the drafter of --init, bit for bit."""
    first = trained[1]
    options = ("--cache", trained[0].out, "--teacher", "cached", "--init", first)
    options += ("--train", "pairs", "--lr", 0.03, "--weight-decay", 0.1)
    whole = train(recipe(tmp_path / "whole", *options, "--pair-rank", 4))
    found, params, ids = load_drafter(whole)
    before, known, known_ids = load_drafter(first)
    assert found == dataclasses.replace(before, pair_rank=4)
    assert ids.tolist() == known_ids.tolist()
    pairs = params.pop("pairs")
    jax.tree.map(np.testing.assert_array_equal, params, known)
    assert np.asarray(pairs["next"]).any()
    prompt = list(map(int, tiny.prompts[0]))
    text, plain = (
        DartModel.from_pretrained(tiny.target, *drafter).generate(prompt, max_new_tokens=16)
        for drafter in ((whole, tiny.ngram), ())
    )
    assert text.tokens.tolist() == plain.tokens.tolist()
    with pytest.raises(UserError, match="made with another --pair-rank \\(4, now 3\\)"):
        train(recipe(tmp_path / "whole", *options, "--pair-rank", 3))


@pytest.mark.long
def test_pair_scores_with_the_drafter(recipe, trained, tmp_path):
    """All parameters are trained, from fresh ones as without pair scores, and further."""
    options = ("--cache", trained[0].out, "--teacher", "cached", "--eval-prompts", 0)
    fresh = ("--draft-vocab", 200, "--pair-rank", 4)
    drafter = train(recipe(tmp_path / "first", *options, *fresh))
    ours, theirs = metrics(tmp_path / "first"), metrics(trained[0].out)
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-5)
    assert ours[-1]["loss"] < 0.9 * ours[0]["loss"]
    found, params, _ = load_drafter(drafter)
    assert params["pairs"]["prev"].shape == (200, 4)
    assert np.asarray(params["pairs"]["next"]).any()
    # The pair scores of --init are kept, unless others are asked for.
    config = recipe(tmp_path / "second", *options, "--init", drafter, "--lr", 1e-12)
    again, kept, _ = load_drafter(train(config))
    assert again == found
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), kept, params)
    with pytest.raises(UserError, match="has pair scores of rank 4"):
        train(recipe(tmp_path / "third", *options, "--init", drafter, "--pair-rank", 5))


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "vocab", "layout"),
    [("dspark", 200, "speculators"), ("dspark", 0, "deepspec"), ("dflash", 0, "dflash")],
)
def test_block_drafters(recipe, trained, tiny, tmp_path, method, vocab, layout):
    """They learn, are written in a layout of their authors', decode, and can be trained further."""
    options = ("--cache", trained[0].out, "--teacher", "cached", "--eval-prompts", 0)
    options += ("--method", method, "--loss", "tv", "--position-weights", "path")
    drafter = train(recipe(tmp_path / "first", *options, "--draft-vocab", vocab))
    losses = [line["held_out_loss"] for line in metrics(tmp_path / "first") if "alpha_1" in line]
    assert losses[-1] < losses[0]
    stored, params, ids = load_drafter(drafter)
    assert (stored.layout, stored.num_positions, len(ids)) == (layout, 4, vocab or len(ids))
    prompt = list(map(int, tiny.prompts[0]))
    model = DartModel.from_pretrained(tiny.target, drafter)
    assert model.drafter.own_head == bool(vocab)
    plain = model.with_drafter(None).generate(prompt, max_new_tokens=16)
    assert model.generate(prompt, max_new_tokens=16).tokens.tolist() == plain.tokens.tolist()
    further = train(recipe(tmp_path / "second", *options, "--init", drafter, "--lr", 1e-12))
    again, kept, _ = load_drafter(further)
    assert again == stored
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), kept, params)


def test_going_on_with_another_target_is_refused(trained, tiny, tmp_path):
    config, _ = trained
    shutil.copytree(config.out, tmp_path / "run")
    target, params = load_target(tiny.target)
    shutil.copytree(tiny.target, tmp_path / "target")
    target = dataclasses.replace(target, rope=Rope(2e4))
    save_target(tmp_path / "target", target, params, eos=(0,))
    changed = dataclasses.replace(config, target=str(tmp_path / "target"), out=tmp_path / "run")
    with pytest.raises(UserError, match="made with another --target"):
        train(changed)
    assert len([*(tmp_path / "run" / "features").iterdir()]) == 2  # it has features of its own


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [("--method", "eagle3"), ("--no-shifted", "--anchors", "8")],
    ids=["eagle3", "unshifted"],
)
def test_other_kinds_of_drafters(recipe, trained, tiny, tmp_path, options):
    options = ("--cache", trained[0].out, "--eval-prompts", 0, *options)
    drafter = train(recipe(tmp_path, *options))
    records = metrics(tmp_path)
    assert records[-1]["loss"] < records[0]["loss"]
    found, _, ids = load_drafter(drafter)
    assert isinstance(found, Eagle3Config if "eagle3" in options else DartConfig)
    assert ids.tolist() == [*range(300)]


@pytest.fixture(scope="module")
def mixture(tiny, tmp_path_factory):
    """A mixture of experts for groups of four devices, which have two heads of keys and values."""
    config = dataclasses.replace(
        tiny_model.SHAPES.target,
        model_type="qwen3_moe",
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        moe=MoEConfig(8, 2, 32, norm_topk_prob=True),
    )
    path = tmp_path_factory.mktemp("mixture")
    save_target(path, config, init_params(config, 0), eos=(0,))
    shutil.copy(tiny.target / "tokenizer.json", path)
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("devices", "options"),
    [
        ({"devices": 8}, ["--teacher", "online"]),
        ({"processes": 2, "devices": 4}, ["--teacher", "cached"]),
        ({"processes": 2, "devices": 4}, ["--method", "dspark", "--pair-rank", 4]),
    ],
    ids=["eight devices", "two processes", "two processes, first weights"],
)
def test_devices_that_share_the_target(
    recipe, recipe_file, tiny, mixture, tmp_path, devices, options
):
    """They compute and evaluate what one device does; of two processes, one tells and writes."""
    options += ["--target", mixture, "--ngram", tiny.ngram, "--draft-vocab", 200]
    options += ["--eval-prompts", 3, "--mesh"]
    command = [sys.executable, "-m", "train.drafter", "--config", recipe_file]
    command += ["--out", tmp_path / "many", *options, "data=2,model=4"]
    told = run_together(command, **devices)
    assert [f"step {STEPS}/{STEPS}" in each for each in told] == [True, False][: len(told)]
    train(recipe(tmp_path / "one", *options, "model=1"))
    ours, theirs = metrics(tmp_path / "many"), metrics(tmp_path / "one")
    assert [record.keys() for record in ours] == [record.keys() for record in theirs]
    assert "tau_without_ngram" in ours[-1]
    # The factors of first pair scores depend on rounding where directions are equally good.
    near = 1e-3 if "dspark" in options else 1e-4
    for our, their in zip(ours, theirs, strict=True):
        for name in our.keys() - {"seconds", "tokens_per_second"}:
            assert our[name] == pytest.approx(their[name], rel=near), name
    # They know the target by the same name, so that a run can go on and a cache serve elsewhere.
    names = [{path.name for path in tmp_path.glob(f"{run}/features/*")} for run in ("many", "one")]
    assert names[0] == names[1]
    assert len(names[0]) == ("cached" in options)


@pytest.mark.long
def test_epochs_instead_of_steps(recipe, trained, tmp_path):
    config = recipe(
        tmp_path, "--cache", trained[0].out, "--epochs", 0.5, "--batch-size", 2, "--eval-prompts", 0
    )
    train(config)
    rows = json.loads((trained[0].out / "data" / "training.json").read_text())["statistics"]["rows"]
    assert metrics(tmp_path)[-1]["step"] == math.ceil(0.5 * (rows // 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--context", 5000), "--context 5000 is beyond the target's 2048 positions"),
        (("--batch-size", 1000), "lower --batch-size or --context"),
        (("--init", "DRAFTER", "--positions", 5), "another shape"),
        (("--method", "eagle3", "--layers", 2), "eagle3 drafters have one layer"),
        (("--method", "eagle3", "--pair-rank", 2), "--pair-rank is of DART and DSpark"),
        (("--pair-rank", -1), "--pair-rank must be 0, for no pair scores, or more"),
        (("--pair-rank", 2, "--train", "pairs"), "pass --init"),
        (("--init", "DRAFTER", "--train", "pairs"), "has no pair scores; add some by --pair-rank"),
        (("--draft-vocab", 301), "1..300 tokens, got 301"),
        (("--ngram", "nowhere.dng"), "nowhere.dng"),
        (("--ngram", "nowhere.dng", "--method", "eagle3"), "leave --ngram out"),
        (("--epochs", "inf"), "--epochs must be a finite number above 0, got inf"),
        (("--ngram-weight", "nan"), "--ngram-weight must be a finite number of at least 0"),
        (("--chunk", 0), "--chunk must be at least 1"),
        (("--init", "DRAFTER", "--draft-vocab", 20), "leave --draft-vocab out"),
    ],
)
def test_what_cannot_be(recipe, trained, tiny, tmp_path, options, message):
    options = [tiny.drafter if option == "DRAFTER" else option for option in options]
    with pytest.raises(UserError, match=message):
        train(recipe(tmp_path, *options))


# The file of a recipe


def test_the_command_line_comes_after_the_file(tmp_path):
    """They are judged together."""
    path = tmp_path / "recipe.toml"
    path.write_text("""
data = "a.jsonl"
out = "here"
train = "pairs"
pair_rank = 4
[trainer]
lr = 1
steps = 5
[devices]
mesh = "model=2"
""")
    args = [f"--config={path}", "--target", "t", "--init", "i", "--steps", "3"]
    config = parse(DrafterTraining, args, None)
    assert config.data.data == ("a.jsonl",)
    assert (config.out, config.drafter.train, config.drafter.init) == (Path("here"), "pairs", "i")
    assert (config.trainer.steps, config.trainer.lr, config.trainer.mesh) == (3, 1.0, "model=2")
    assert isinstance(config.trainer.lr, float)
    assert config.trainer.b1 == 0.9  # of neither


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train = 'pairs'", "--train pairs needs the drafter to freeze"),
        ("steps = 3\n[trainer]\nsteps = 4", "steps is given twice"),
        ("steps =", "is not TOML"),
        # As on the command line.
        ("gama = 0.6", "gama"),
        ("steps = 1.5", "steps"),
    ],
)
def test_a_bad_file(tmp_path, capsys, text, message):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    args = ["--config", str(path), "--target", "t", "--out", "o", "--data", "d"]
    with pytest.raises((UserError, SystemExit)) as raised:
        parse(DrafterTraining, args, None)
    assert message in f"{raised.value}{capsys.readouterr().err}"
