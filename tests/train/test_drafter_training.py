"""`train.drafter`: from data to a drafter that decodes."""

import dataclasses
import json
import math
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_model
from decoding import decode
from toy_training import run_together

from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.models.config import MoEConfig
from dart_jax.models.drafter_config import DartConfig
from dart_jax.models.networks.pure import bind, init_params
from dart_jax.models.rope import Rope
from dart_jax.weights.checkpoint import load_drafter, load_target, save_target
from train.data.packed_dataset import PackedDataset
from train.drafter.config import DrafterTraining
from train.drafter.program import train
from train.objective.predictions import Frozen, PackedForward
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


def assert_decodes(tiny, drafter, *ngram):
    """The drafter writes what its target writes; returns the model."""
    model = DartModel.from_pretrained(tiny.target, drafter, *ngram)
    prompt, plain = list(map(int, tiny.prompts[0])), model.with_drafter(None)
    text, expected = (m.generate(prompt, max_new_tokens=16).tokens for m in (model, plain))
    assert text.tolist() == expected.tolist()
    return model


def test_a_run_leaves_a_drafter_that_decodes(trained, tiny):
    config, drafter = trained
    model = assert_decodes(tiny, drafter, tiny.ngram)
    assert isinstance(model.drafter, DartConfig)
    assert (model.drafter.num_positions, model.drafter.draft_vocab_size) == (4, 200)
    assert "shifted" not in json.loads((drafter / "config.json").read_text())
    # A finished run is trained no further.
    before = metrics(config.out), (drafter / "model.safetensors").read_bytes()
    assert train(config) == drafter
    assert (metrics(config.out), (drafter / "model.safetensors").read_bytes()) == before


def test_what_a_run_tells(trained):
    config, _ = trained
    records = metrics(config.out)
    assert [record["step"] for record in records] == [*range(1, STEPS + 1)]
    assert records[-1]["loss"] < 0.9 * records[0]["loss"]
    told = [record for record in records if "tau" in record]
    assert [record["step"] for record in told] == [3, 6]
    for record in told:
        assert all(0 <= record[f"alpha_{t}"] <= 1 for t in range(1, 5))
        assert min(record["tau"], record["tau_without_ngram"]) >= 1
    assert told[1]["held_out_loss"] < told[0]["held_out_loss"]


def prepared(config):
    [path] = (config.out / "data").glob("*/training.json")
    return PackedDataset.load(path.parent, "training")


def test_what_is_kept_of_the_teacher(trained, tiny, tmp_path):
    """Equals what the target computes online, rounded to bfloat16; filling goes on where it
    ended."""
    config, _ = trained
    shutil.copytree(config.out / "features", tmp_path / "features")
    [directory] = (tmp_path / "features").iterdir()
    dataset, teacher = prepared(config), Teacher.load(tiny.target, np.dtype("float32"), make_mesh())
    forward = PackedForward(teacher.config, config.drafter.config(teacher.config), 4)
    frozen, every = Frozen(teacher.params, jnp.arange(300)), np.arange(dataset.rows)
    data = jax.jit(forward.run_target)(frozen, dataset.batch(every))
    served = teacher.as_served()
    kept = cached_outputs(served, dataset, tmp_path / "features").outputs
    texts = np.asarray(data.document) > 0  # and zeros in the padding
    for name in ("features", "hidden"):
        found, expected = kept[name].astype(np.float32), getattr(data.outputs, name)
        np.testing.assert_allclose(found[texts], expected[texts], rtol=1e-2, atol=1e-4)
    # What is kept of the logits fits the hidden states that are kept.
    logits = bind(teacher.config, teacher.params).logits(jnp.asarray(found))
    expected = jax.nn.logsumexp(logits, axis=-1)
    np.testing.assert_allclose(kept["log_total"], expected, rtol=0, atol=1e-5)
    assert (kept["best"] == logits.argmax(-1)).all()

    whole = {name: (directory / name).read_bytes() for name in kept}
    for name, content in whole.items():
        row = len(content) // dataset.rows
        # The first row is not computed again, whatever it holds; others from the fourth on are.
        damaged = bytes(row) + content[row : 3 * row] + bytes(len(content) - 3 * row)
        (directory / name).write_bytes(damaged)
    (directory / "done.json").write_text(json.dumps({"rows": 3}))
    cached_outputs(served, dataset, tmp_path / "features")
    for name, content in whole.items():
        row = len(content) // dataset.rows
        assert (directory / name).read_bytes() == bytes(row) + content[row:]
    # A file that is not whole is made again, and so are the others.
    (directory / "hidden").write_bytes(b"cut")
    cached_outputs(served, dataset, tmp_path / "features")
    assert {name: (directory / name).read_bytes() for name in kept} == whole


@pytest.mark.long
def test_pair_scores(recipe, trained, tiny, tmp_path):
    """Alone everything else stays as it is in the drafter of --init, bit for bit; together with
    it they are kept."""
    first = trained[1]
    shared = ("--cache", trained[0].out, "--teacher", "cached", "--weight-decay", 0.1, "--init")
    options = (*shared, first, "--train", "pairs", "--lr", 0.03)
    whole = train(recipe(tmp_path / "whole", *options, "--pair-rank", 4))
    found, params, ids = load_drafter(whole)
    before, known, known_ids = load_drafter(first)
    assert found == dataclasses.replace(before, pair_rank=4)
    assert ids.tolist() == known_ids.tolist()
    jax.tree.map(np.testing.assert_array_equal, params | {"pairs": None}, known | {"pairs": None})
    assert np.asarray(params["pairs"]["next"]).any()
    assert_decodes(tiny, whole, tiny.ngram)
    with pytest.raises(UserError, match="made with another --pair-rank \\(4, now 3\\)"):
        train(recipe(tmp_path / "whole", *options, "--pair-rank", 3))
    further = train(recipe(tmp_path / "further", *shared, whole, "--lr", 1e-12))
    assert_same(further, whole)
    with pytest.raises(UserError, match="has pair scores of rank 4"):
        train(recipe(tmp_path / "other", *shared, whole, "--pair-rank", 5))


def assert_same(drafter, other):
    (config, params, _), (theirs, expected, _) = map(load_drafter, (drafter, other))
    assert config == theirs
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), params, expected)


TV = ("--loss", "tv", "--position-weights", "path")


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "vocab", "layout", "options"),
    [
        ("dspark", 200, "speculators", TV),
        ("dspark", 0, "deepspec", TV),
        ("dflash", 0, "dflash", TV),
        ("eagle3", 0, "reference", ()),
        ("dart", 0, "reference", ("--no-shifted", "--anchors", 8)),
        ("dart", 200, "reference", ("--pair-rank", 4)),
    ],
)
def test_kinds_of_drafters(recipe, trained, tiny, tmp_path, method, vocab, layout, options):
    """They learn, are written in a layout of their authors', decode, and can be trained further."""
    options = ("--cache", trained[0].out, "--teacher", "cached", "--eval-prompts", 0, *options)
    options += ("--method", method)
    drafter = train(recipe(tmp_path / "first", *options, "--draft-vocab", vocab))
    losses = [line["held_out_loss"] for line in metrics(tmp_path / "first") if "alpha_1" in line]
    assert losses[-1] < losses[0]
    stored, _, ids = load_drafter(drafter)
    assert (stored.layout, len(ids)) == (layout, vocab or 300)
    assert_decodes(tiny, drafter)
    further = train(recipe(tmp_path / "second", *options, "--init", drafter, "--lr", 1e-12))
    assert_same(further, drafter)


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
    # One CPU computes cached outputs as it decodes; these are others, by name.
    names = [path.name for path in tmp_path.glob("*/features/*")]
    assert len({*names}) == len(names) == 2 * ("cached" in options)


@pytest.mark.long
def test_epochs_instead_of_steps(recipe, trained, tmp_path):
    options = ("--epochs", 0.5, "--batch-size", 2, "--eval-prompts", 0)
    train(recipe(tmp_path, "--cache", trained[0].out, *options))
    assert metrics(tmp_path)[-1]["step"] == math.ceil(0.5 * (prepared(trained[0]).rows // 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--context", 5000), "--context 5000 is beyond the target's 2048 positions"),
        (("--batch-size", 1000), "lower --batch-size or --context"),
        (("--init", "DRAFTER", "--positions", 5), "another shape"),
        (("--init", "DRAFTER", "--train", "pairs"), "has no pair scores; add some by --pair-rank"),
        (("--draft-vocab", 301), "1..300 tokens, got 301"),
        (("--ngram", "nowhere.dng"), "nowhere.dng"),
        (("--ngram", "nowhere.dng", "--method", "eagle3"), "leave --ngram out"),
        (("--epochs", "inf"), "--epochs must be a finite number above 0, got inf"),
        (("--ngram-weight", "nan"), "--ngram-weight must be at least 0"),
        (("--chunk", 0), "--chunk must be at least 1"),
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
train = "pairs"
pair_rank = 4
[trainer]
lr = 1
steps = 5
""")
    args = ["--target", "t", "--out", "o", "--steps", "3"]
    config = parse(DrafterTraining, [f"--config={path}", *args, "--init", "i"], None)
    assert config.data.data == ("a.jsonl",)
    assert (config.drafter.train, config.drafter.pair_rank, config.drafter.init) == (
        "pairs",
        4,
        "i",
    )
    assert (config.trainer.steps, config.trainer.lr, config.trainer.b1) == (3, 1.0, 0.9)
    with pytest.raises(UserError, match="--train pairs needs the drafter to freeze"):
        parse(DrafterTraining, [f"--config={path}", *args], None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
