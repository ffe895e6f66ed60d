"""A target that writes what a test says."""

import itertools

import jax
import jax.numpy as jnp
from tokenizers import AddedToken
from tokenizers_made import byte_level

from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import init_params
from dart_jax.weights.checkpoint import save_target

END = "<|im_end|>"


def write_scripted_target(directory, pieces, template, special=()):
    """Writes a target that continues every prompt with some pieces, each of which is a token, and
    then ends the text; returns its path.

    No two pieces are equal, and no prompt ends with one, unless it is the first that follows. Those
    in `special` are special tokens; `template` is of its chats.
    """
    assert len({*pieces}) == len(pieces)
    tokenizer = byte_level()
    new = [piece for piece in pieces if tokenizer.token_to_id(piece) is None]
    tokenizer.add_tokens(
        [AddedToken(piece, special=piece in special, normalized=False) for piece in new]
    )
    ids = [tokenizer.token_to_id(piece) for piece in (*pieces, END)]
    size = tokenizer.get_vocab_size()
    width = -(-size // 64) * 64
    config = TargetConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=1024,
    )
    # Layers that add nothing, and a head that knows what follows each token.
    params = jax.tree.map(jnp.zeros_like, init_params(config, 0))
    follows = dict(itertools.pairwise(ids))
    following = jnp.array([follows.get(id, ids[0]) for id in range(size)], jnp.int32)
    kernel = params["lm_head"]["kernel"]
    params["lm_head"]["kernel"] = kernel.at[jnp.arange(size), following].set(4.0)
    params["embed_tokens"] = jnp.eye(size, width)
    params["norm"]["scale"] = jnp.ones(width)
    save_target(directory, config, params, eos=(ids[-1],))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(template)
    return directory
