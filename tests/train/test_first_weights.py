"""The first weights of block drafters: attention to the rows just before, pairs of the target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dart_jax.data.stdlib import read, stdlib
from dart_jax.models.networks.pure import bind, init_params
from dart_jax.named.models import MODELS
from dart_jax.text.tokenizer import Tokenizer
from train.data.encoding import Encoded
from train.data.packed_dataset import PackedDataset, Writer, draft_vocabulary
from train.objective.drafter_shape import DrafterShape
from train.objective.first_weights import informed
from train.run.mesh import make_mesh
from train.teacher.teacher import Teacher, forward

LENGTH, ROWS, VOCABULARY = 96, 16, 500


@pytest.fixture(scope="module")
def teacher():
    """The demo's target: its embeddings and features are those of a trained model."""
    return Teacher.load(MODELS["demo"].target(), np.dtype("float32"), make_mesh(None))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows of a text."""
    directory = tmp_path_factory.mktemp("data")
    ids = Tokenizer.load(MODELS["demo"].target()).encode(read(stdlib() / "argparse.py"))
    tokens = np.array(ids[: ROWS * LENGTH], np.int32)
    writer = Writer(directory, "text", LENGTH, 4096)
    writer.add(Encoded(tokens, np.arange(len(tokens)) > 0, whole=False))
    writer.finish()
    return PackedDataset.load(directory, "text")


@pytest.fixture(scope="module")
def outputs(teacher, data):
    """The target's features and hidden states for all rows."""
    run = jax.jit(lambda params, batch: forward(teacher.config, params, batch))
    return run(teacher.params, data.batch(np.arange(data.rows)))


@pytest.fixture(scope="module", params=["dspark", pytest.param("dflash", marks=pytest.mark.long)])
def drafter(request, teacher, data):
    """A drafter's config, the parameters it begins with, and its draft vocabulary. DSpark's pair
    scores have a greater rank than hidden states have dimensions."""
    rank = 330 if request.param == "dspark" else None
    shape = DrafterShape(method=request.param, draft_vocab=VOCABULARY, pair_rank=rank)
    config = shape.config(teacher.config, mask_token=1)
    ids = draft_vocabulary(data, VOCABULARY)
    params = init_params(config, 0)
    params["lm_head"] = {"kernel": teacher.head(ids)}
    first = informed(config, params, teacher, data, ids)
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, params)
    return config, first, ids


def test_heads_prefer_the_rows_just_before(teacher, data, outputs, drafter):
    config, params, _ = drafter
    batch = data.batch(np.arange(2))
    model, target = bind(config, params), bind(teacher.config, teacher.params)
    context, places = model.context(outputs[0][:2]), jnp.arange(LENGTH)[None].repeat(2, 0)
    embed, layer = model.embedding(target.embed), model.layers[0]

    def heads(inputs):
        return layer.self_attn.rotated_heads(inputs, places)

    text = layer.input_layernorm(embed(jnp.asarray(batch.tokens)))
    masks = layer.input_layernorm(embed(jnp.full_like(places, config.mask_token_id)))
    q = heads(text)[0]

    def scores(keys):
        """Mean score of each head by distance, [H, distances]."""
        products = np.asarray(jnp.einsum("bhqd,bkd->bhqk", q, keys[:, 0])).mean(axis=0)
        return np.stack([products.diagonal(-n, 1, 2).mean(axis=1) for n in range(LENGTH // 2)], 1)

    each = np.arange(config.num_attention_heads)
    of_text, of_masks = scores(heads(text)[1]), scores(heads(masks)[1])
    for found in (of_text, scores(heads(context)[1])):
        assert np.array_equal(found.argmax(axis=1), each)
    # Without a part of their own, keys of mask rows are nothing to look for.
    assert (of_masks[each, each] < 0.5 * of_text[each, each]).all()
    logits = model.logits(model.normed(context), target.logits)
    assert 0.5 < float(jnp.std(logits)) < 2


def test_pair_scores_are_what_the_target_predicts_after_a_token(teacher, data, outputs, drafter):
    config, params, ids = drafter
    if not config.pair_rank:
        assert "pairs" not in params
        return
    logits = bind(teacher.config, teacher.params).logits(outputs[1])[..., ids]
    pairs = bind(config, params).pairs
    scores = pairs.all_next(pairs.first_factors(data.batch(np.arange(data.rows)).tokens))

    def agreement(scores):
        return float(jnp.mean(jnp.argmax(scores, -1) == jnp.argmax(logits, -1)))

    assert agreement(scores) > 2 * agreement(jnp.zeros_like(scores))
