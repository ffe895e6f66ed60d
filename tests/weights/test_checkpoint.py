"""Checkpoints: the same bits back, the layouts' names, and every kind of damage reported."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import GOLDEN
from refusals import report
from safetensors.numpy import load_file, save_file

from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.drafter_config import DartConfig, DraftLayerConfig, Eagle3Config
from dart_jax.models.networks.pure import abstract_params
from dart_jax.models.platform.weights import WeightsForm
from dart_jax.models.rope import Rope
from dart_jax.weights.checkpoint import (
    load_drafter,
    load_target,
    resolve_dtype,
    save_drafter,
    save_target,
)

TARGET = TargetConfig(
    vocab_size=30,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=7,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=4,
)
DRAFTER = DartConfig(
    vocab_size=30,
    draft_vocab_size=20,
    hidden_size=8,
    intermediate_size=12,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=4,
    draft_length=3,
    target_hidden_size=8,
)
SCORED = dataclasses.replace(DRAFTER, pair_rank=3)
EAGLE3 = Eagle3Config(
    **{field.name: getattr(DRAFTER, field.name) for field in dataclasses.fields(DraftLayerConfig)}
)
DRAFTERS = {
    "dart": DRAFTER,
    "dart with pair scores": SCORED,
    "eagle3": EAGLE3,
    "eagle3 with norms": dataclasses.replace(
        EAGLE3, norm_before_residual=True, norm_output=True, fc_norm=True
    ),
    "eagle3 of other layers": dataclasses.replace(
        EAGLE3, norm_before_fc=True, qk_norm=True, feature_layers=(0, 1, 3, 5), own_embedding=True
    ),
}
EXPERTS = MoEConfig(3, 2, 6, norm_topk_prob=False, dense_layers=(1, 4), shared_intermediate_size=5)
# All architectures are saved and loaded in tests/models/test_parity.py.
TARGETS = {
    "untied": TARGET,
    # More than one tile.
    "tied": dataclasses.replace(TARGET, tie_word_embeddings=True, intermediate_size=2100),
    "experts": dataclasses.replace(
        TARGET, model_type="qwen2_moe", attention_bias=True, moe=EXPERTS
    ),
    "joined": dataclasses.replace(TARGET, model_type="phi3", rope=Rope(1e4, share=0.5)),
}
IDS = np.sort(np.random.default_rng(0).permutation(30)[:20]).astype(np.int32)


def random_params(config, seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    shapes = abstract_params(config)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), dtype), shapes)


def assert_same_bits(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.long(keep=6)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shard", [10**9, 700, 1])
@pytest.mark.parametrize("name", [*TARGETS, *DRAFTERS])
def test_round_trip(tmp_path, dtype, name, shard):
    if name in TARGETS:
        config, save, load, ids = TARGETS[name], save_target, load_target, ()
    else:
        config, save, load, ids = DRAFTERS[name], save_drafter, load_drafter, (IDS,)
    params = random_params(config, dtype=dtype)
    save(tmp_path, config, params, *ids, max_shard_size=shard)
    loaded_config, loaded, *loaded_ids = load(tmp_path, dtype)
    assert loaded_config == config
    assert_same_bits(loaded, params)
    assert_same_bits(loaded_ids, list(ids))
    names = {path.name for path in tmp_path.iterdir()} - {"pair_scores.safetensors"}
    assert ("model.safetensors" in names) == (shard == 10**9) == (len(names) == 2)


@pytest.mark.parametrize("stored", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_matrices_stay_in_16_bits(tmp_path, stored):
    save_target(tmp_path / "target", TARGET, random_params(TARGET, dtype=stored))
    save_drafter(tmp_path / "drafter", SCORED, random_params(SCORED, dtype=stored), IDS)
    for load, name in ((load_target, "target"), (load_drafter, "drafter")):
        wide = load(tmp_path / name)[1]
        loaded = load(tmp_path / name, form=WeightsForm(tiles=True))[1]
        assert_same_bits(jax.tree.map(lambda x: x.astype("float32"), loaded), wide)
        for path, leaf in jax.tree_util.tree_leaves_with_path(loaded):
            kept = path[-1].key in ("kernel", "embed_tokens")
            assert leaf.dtype == (stored if kept else jnp.float32)
    # In other dtypes weights are converted.
    target = tmp_path / "target"
    both = (load_target(target, jnp.bfloat16, form=WeightsForm(tiles=x))[1] for x in (False, True))
    assert_same_bits(*both)


def test_pair_scores_have_a_file_of_their_own(tmp_path):
    """All other weights are written as without them."""
    params = random_params(SCORED)
    without = {name: value for name, value in params.items() if name != "pairs"}
    save_drafter(tmp_path / "with", SCORED, params, IDS, max_shard_size=700)
    save_drafter(tmp_path / "without", DRAFTER, without, IDS, max_shard_size=700)
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("with", "without")
    )
    json_config = json.loads(ours.pop("config.json"))
    assert json_config.pop("pair_rank") == 3
    assert json_config == json.loads(theirs.pop("config.json"))
    del ours["pair_scores.safetensors"]
    assert ours == theirs
    stored = load_file(tmp_path / "with" / "pair_scores.safetensors")
    assert stored.keys() == {"prev.weight", "next.weight", "gate.weight"}
    # A drafter that replaces this one has none, and without pair_rank the file is not read.
    (tmp_path / "with" / "config.json").write_bytes((tmp_path / "without/config.json").read_bytes())
    assert_same_bits(load_drafter(tmp_path / "with")[1], without)
    save_drafter(tmp_path / "with", DRAFTER, without, IDS)
    names = {path.name for path in (tmp_path / "with").iterdir()}
    assert names == {"config.json", "model.safetensors"}


def test_unusable_pair_scores_are_reported(tmp_path):
    save_drafter(tmp_path, SCORED, random_params(SCORED), IDS)
    path = tmp_path / "pair_scores.safetensors"
    written, stored = path.read_bytes(), load_file(path)
    path.write_bytes(written[:-5])
    assert f"cannot read {path}: " in report(load_drafter, tmp_path)
    save_file({**stored, "prev.weight": stored["prev.weight"][:, :2]}, path)
    message = "does not fit its config: pair_scores.prev.weight has shape (20, 2)"
    assert message in report(load_drafter, tmp_path)
    path.unlink()
    assert f"no file {path}, although config.json has" in report(load_drafter, tmp_path)


def test_saving_replaces_what_was_there(tmp_path):
    directory = tmp_path / "new" / "directory"
    for seed, shard in enumerate([10**9, 2000, 1000, 10**9]):
        save_target(directory, TARGET, random_params(TARGET, seed), max_shard_size=shard)
        assert_same_bits(load_target(directory)[1], random_params(TARGET, seed))
        names = {"model.safetensors"}
        if shard < 10**9:
            index = json.loads((directory / "model.safetensors.index.json").read_text())
            names = {"model.safetensors.index.json", *index["weight_map"].values()}
        assert {path.name for path in directory.iterdir()} == {"config.json", *names}


@pytest.mark.long(keep=3)
@pytest.mark.parametrize("name", ["qwen3-tied", "qwen3-draft-vocab"])
@pytest.mark.parametrize(
    ("kind", "load", "save"),
    [
        ("target", load_target, save_target),
        ("drafter", load_drafter, save_drafter),
        ("eagle3", load_drafter, save_drafter),
    ],
)
def test_golden_files_are_written_again_bit_for_bit(tmp_path, name, kind, load, save):
    save(tmp_path, *load(GOLDEN / name / kind))
    ours = load_file(tmp_path / "model.safetensors")
    theirs = load_file(GOLDEN / name / kind / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for tensor, expected in theirs.items():
        assert ours[tensor].shape == expected.shape
        assert_same_bits(ours[tensor], expected)
    written, golden = (
        json.loads((directory / "config.json").read_text())
        for directory in (tmp_path, GOLDEN / name / kind)
    )
    special = {"eos_token_id", "bos_token_id", "pad_token_id"}  # not given to save_target
    for field in written.keys() & golden.keys() - special:
        assert written[field] == golden[field]


def test_a_drafter_without_a_draft_vocabulary(tmp_path, drafter):
    config = dataclasses.replace(DRAFTER, draft_vocab_size=30)
    save_drafter(tmp_path / "whole", config, random_params(config), np.arange(30, dtype=np.int32))
    for place in (tmp_path / "whole", drafter):
        change_tensors(place, lambda t: {k: v for k, v in t.items() if k not in ("d2t", "t2d")})
    assert load_drafter(tmp_path / "whole")[2].tolist() == list(range(30))
    assert "missing d2t" in report(load_drafter, drafter)  # of a smaller vocabulary


@pytest.mark.parametrize("stored", [np.float32, ml_dtypes.bfloat16])
def test_the_embedding_of_an_eagle3_file(tmp_path, stored):
    params = random_params(EAGLE3)
    save_drafter(tmp_path, EAGLE3, params, IDS)
    table = np.random.default_rng(5).normal(0, 1e-3, (30, 8)).astype(np.float32)
    change_tensors(tmp_path, lambda t: t | {"embed_tokens.weight": table.astype(stored)})
    for ours in (jnp.asarray(table), jnp.asarray(table.astype(stored).astype(np.float32))):
        assert_same_bits(load_drafter(tmp_path, embedding=ours)[1], params)
    # One that is not the target's is the drafter's own.
    for other in (None, jnp.asarray(np.where(np.arange(30)[:, None] == 7, 0, table))):
        config, loaded, _ = load_drafter(tmp_path, embedding=other)
        assert config == dataclasses.replace(EAGLE3, own_embedding=True)
        own = jnp.asarray(table.astype(stored).astype(np.float32))
        assert_same_bits(loaded, params | {"embed_tokens": own})
    change_tensors(tmp_path, lambda t: t | {"embed_tokens.weight": np.zeros((30, 8), np.int32)})
    report(load_drafter, tmp_path, embedding=jnp.asarray(table))


@pytest.mark.parametrize("drafter", [DRAFTER, EAGLE3], ids=["dart", "eagle3"])
def test_eagles_reader_finds_the_embedding_of_an_exported_drafter(tmp_path, drafter):
    """It reads the target's unless the config names `target_hidden_size`, and then the file's."""
    own = jnp.asarray(np.random.default_rng(2).normal(size=(30, 16)), jnp.float32)
    for width, table in ((8, None), (16, own)):
        config = dataclasses.replace(drafter, hidden_size=width)
        save_drafter(tmp_path, config, random_params(config), IDS, embedding=table)
        fields = json.loads((tmp_path / "config.json").read_text())
        tensors = load_file(tmp_path / "model.safetensors")
        assert ("target_hidden_size" in fields) == ("embed_tokens.weight" in tensors)
        assert tensors["fc.weight"].shape == (width, 3 * fields.get("target_hidden_size", width))
    np.testing.assert_array_equal(tensors["embed_tokens.weight"], own)
    arguments = (tmp_path / "other", config, random_params(config), IDS)
    assert "rows have 16 numbers and the target's 8" in report(save_drafter, *arguments)
    message = report(save_drafter, *arguments, embedding=jnp.zeros((30, 8)))
    assert "embedding has shape (30, 8)" in message
    assert not (tmp_path / "other").exists()


def test_dtypes(target, monkeypatch):
    for dtype in ("float3", np.int32, "float8_e4m3fn", None):
        for load in (load_target, load_drafter):
            message = "weights can be float32, float16 or bfloat16"
            assert message in report(load, target, dtype)
    devices = {
        "float32": SimpleNamespace(platform="cpu"),
        "float16": SimpleNamespace(platform="gpu", compute_capability="7.5"),
        "bfloat16": SimpleNamespace(platform="gpu", compute_capability="8.0"),
    }
    for dtype, device in devices.items():
        monkeypatch.setattr("jax.local_devices", lambda device=device: [device])
        assert resolve_dtype("auto") == jnp.dtype(dtype)
    monkeypatch.setattr("jax.local_devices", lambda: [SimpleNamespace(platform="tpu")])
    assert resolve_dtype("auto") == jnp.bfloat16


@pytest.fixture
def target(tmp_path):
    """A saved target to be damaged."""
    save_target(tmp_path, TARGET, random_params(TARGET))
    return tmp_path


@pytest.fixture
def drafter(tmp_path):
    """A saved drafter to be damaged."""
    save_drafter(tmp_path, DRAFTER, random_params(DRAFTER), IDS)
    return tmp_path


def change_tensors(directory, change):
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


def change_config(directory, **fields):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_missing_and_damaged_files_are_named(target):
    for load in (load_target, load_drafter):
        assert f"no directory {target / 'none'}" in report(load, target / "none")
    config, weights = target / "config.json", target / "model.safetensors"
    data = weights.read_bytes()
    for size in (0, 997, len(data) - 1):
        weights.write_bytes(data[:size])
        assert f"cannot read {weights}: " in report(load_target, target)
    weights.rename(target / "model.onnx")
    message = report(load_target, target)
    assert f"no weights in {target}, which holds config.json, model.onnx; it needs" in message
    for text in (b"", b"{", b"[]", b"3", b"null", b'{"model_type"}', b"\xff\xfe"):
        config.write_bytes(text)
        assert f"cannot read {config}" in report(load_target, target)
    config.unlink()
    for load in (load_target, load_drafter):
        assert report(load, target) == f"no file {config}; the directory holds model.onnx"


def test_all_mismatches_are_in_one_message(target):
    def damage(tensors):
        del tensors["model.layers.3.mlp.up_proj.weight"], tensors["lm_head.weight"]
        embedding = tensors["model.embed_tokens.weight"]
        return tensors | {
            "model.embed_tokens.weight": embedding[:-1],
            "model.layers.0.self_attn.q_proj.weight": np.zeros((12, 9), np.float32),
            "model.layers.1.self_attn.q_proj.bias": np.ones(12, np.float32),
            "model.layers.6.mlp.upper_proj.weight": np.zeros((12, 8), np.float32),
            "model.norm.weight": np.ones(8, np.int8),
        }

    change_tensors(target, damage)
    message = report(load_target, target)
    assert str(target / "model.safetensors") in message
    for problem in (
        "missing model.layers.3.mlp.up_proj.weight",
        "missing lm_head.weight",
        "unexpected model.layers.1.self_attn.q_proj.bias",
        "unexpected model.layers.6.mlp.upper_proj.weight",
        # Shapes as they are in the file, [out, in].
        "model.embed_tokens.weight has shape (29, 8), the config requires (30, 8)",
        "model.layers.0.self_attn.q_proj.weight has shape (12, 9), the config requires (12, 8)",
        "model.norm.weight has dtype int8",
    ):
        assert problem in message
    change_config(target, intermediate_size=13)
    assert report(load_target, target).endswith("; and 19 more")
    change_config(target, model_type="gpt2")
    assert "model_type is 'gpt2'" in report(load_target, target)


@pytest.mark.parametrize(
    ("d2t", "message"),
    [
        (np.zeros(19, np.int64), r"d2t has shape (19,)"),
        (np.full(20, 11), "distinct ids below 30"),
        (-np.arange(20), "distinct ids below 30"),
    ],
)
def test_a_wrong_draft_vocabulary_is_reported(drafter, d2t, message):
    change_tensors(drafter, lambda tensors: tensors | {"d2t": d2t})
    assert message in report(load_drafter, drafter)


def test_a_drafter_is_no_target_nor_a_target_a_drafter(target, tmp_path_factory):
    assert "neither a draft_length (DART) nor" in report(load_drafter, target)
    directory = tmp_path_factory.mktemp("drafter")
    save_drafter(directory, DRAFTER, random_params(DRAFTER), IDS)
    assert "is a drafter; pass it as the drafter of its" in report(load_target, directory)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("stored", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_weights_that_are_not_finite_are_named(target, stored, dtype):
    """A transposed kernel, a table, and one that has nothing else."""
    counts = {"layers.3.mlp.up_proj": 2, "embed_tokens": 1, "norm": 8}
    values = {"layers.3.mlp.up_proj": (-np.nan, np.inf), "embed_tokens": np.nan, "norm": -np.inf}

    def damage(tensors):
        tensors = {name: tensor.astype(stored) for name, tensor in tensors.items()}
        for name, count in counts.items():
            tensors[f"model.{name}.weight"].reshape(-1)[-count:] = values[name]
        return tensors

    change_tensors(target, damage)
    message = report(load_target, target, dtype)
    assert message.startswith(f"{target / 'model.safetensors'} has weights that are NaN or")
    for name, count in counts.items():
        assert f"model.{name}.weight ({count} of them)" in message
    assert message.count(" of them)") == len(counts)


def test_the_largest_finite_weights_are_loaded_and_larger_ones_named(target):
    largest = float(jnp.finfo(jnp.float32).max)
    ends = np.array([largest, -largest, 1e-45, -1e-45, 0.0, -0.0, 1, -1])
    change_tensors(target, lambda t: t | {"model.norm.weight": ends})
    loaded = load_target(target)[1]["norm"]["scale"]
    np.testing.assert_array_equal(loaded, ends.astype(np.float32))
    # It rounds to infinity.
    message = report(load_target, target, jnp.bfloat16)
    assert "infinite in bfloat16, in model.norm.weight (2 of them)" in message


def test_damaged_shards(tmp_path):
    save_target(tmp_path, TARGET, random_params(TARGET), max_shard_size=2000)
    index = tmp_path / "model.safetensors.index.json"
    first, _, third, *_ = sorted(tmp_path.glob("model-*"))
    name = "model.layers.0.mlp.upper_proj.weight"
    save_file(load_file(first) | {name: np.ones(1)}, first)
    assert f"unexpected {name}" in report(load_target, tmp_path)
    for file in (first, third):
        file.unlink()
    message = f"{index} lists files that are missing: {first.name}, {third.name}"
    assert report(load_target, tmp_path) == message
    maps = ({}, {"a": "../model"}, {"a": "/model"}, {"a": 3})
    for content in ("{}", "[]", "{", *(json.dumps({"weight_map": each}) for each in maps)):
        index.write_text(content)
        assert str(index) in report(load_target, tmp_path)


def test_the_index_appears_last(tmp_path, monkeypatch):
    written, replace = [], type(tmp_path).replace
    watch = lambda self, other: written.append(other.name) or replace(self, other)  # noqa: E731
    monkeypatch.setattr(type(tmp_path), "replace", watch)
    save_target(tmp_path, TARGET, random_params(TARGET), eos=(1,), max_shard_size=4000)
    assert written[-1] == "model.safetensors.index.json"
    assert all(name.startswith("model-") for name in written[2:-1])
    written.clear()
    save_target(tmp_path, TARGET, random_params(TARGET), eos=(1,))
    assert written == ["generation_config.json", "config.json", "model.safetensors"]
