"""A target that writes what a test says."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from tokenizers import AddedToken
from tokenizers_made import byte_level

from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import init_params
from dart_jax.weights.checkpoint import save_target

END = "<|im_end|>"


def write_scripted_target(
    directory: Path, pieces: Sequence[str], template: str, special: Collection[str] = ()
) -> Path:
    """Writes a target that continues every prompt with some pieces, each of which is a token, and
    then ends the text; returns its path.

    Args:
      directory: is created.
      pieces: no two are equal, and no prompt ends with one, unless it is the first that follows.
      template: of its chats.
      special: those of the pieces that are special tokens.
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
    zeros = jax.tree.map(jnp.zeros_like, init_params(config, 0))
    follows = dict(itertools.pairwise(ids))
    head = jnp.zeros((size, width))
    for id in range(size):
        head = head.at[follows.get(id, ids[0]), id].set(4.0)
    params = {
        **zeros,
        "embed_tokens": jnp.eye(size, width),
        "lm_head": {"kernel": head.T},
        "norm": {"scale": jnp.ones(width)},
    }
    assert jax.tree.structure(params) == jax.tree.structure(zeros)
    save_target(directory, config, params, eos=(ids[-1],))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(template)
    return directory
