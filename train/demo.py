"""Makes the demo model: tokenizer, target, drafter and n-gram model, from the standard library.

    python -m train.demo --work build/demo --export dart_jax/demo

Tokenizer, target, completions and drafter stay in the work directory and are not made again;
training stages resume from their newest checkpoint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
import tyro

from dart_jax.checkpoint import load_drafter, load_eos, load_target, save_drafter, save_target
from dart_jax.config import DrafterConfig, TargetConfig
from dart_jax.errors import UserError, one_line_errors
from dart_jax.files import write_atomically
from dart_jax.ngram import NgramModel, tokenizer_fingerprint
from dart_jax.pure import Params, init_params
from dart_jax.rope import Rope
from dart_jax.sampling import Sampling
from train.corpus import HELD_OUT, function_prompts, held_out_files, read, training_files
from train.data import Windows
from train.lm import held_out_loss, lm_losses
from train.objective import AnchorBatches, agreement, anchored_logits, annealed_kl, draw_anchors
from train.recipe import TrainerConfig
from train.regenerate import Sequences, regenerate
from train.tokenizer import end_of_text, train_tokenizer
from train.trainer import fit


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """What the demo model is and how long it trains."""

    work: Path = Path("build/demo")
    """Where every stage leaves its result."""
    export: Path | None = None
    """Where to write the model that ships, in bfloat16."""
    vocab_size: int = 4096
    hidden_size: int = 320
    intermediate_size: int = 896
    layers: int = 8
    context: int = 512
    batch: int = 8
    target_steps: int = 1500
    target_lr: float = 2e-3
    draft_length: int = 7
    sequence: int = 256
    anchors: int = 32
    drafter_batch: int = 16
    drafter_steps: int = 1300
    drafter_lr: float = 2e-3
    gamma: float = 0.6
    seed: int = 0

    @property
    def target(self) -> TargetConfig:
        """The target's shape: Qwen3, heads of 64 sharing one key/value head."""
        return TargetConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden_size // 64,
            num_key_value_heads=1,
            head_dim=64,
            rope=Rope(1e4),
            tie_word_embeddings=True,
            max_position_embeddings=2048,
        )

    @property
    def drafter(self) -> DrafterConfig:
        """The drafter's shape: one layer like the target's, over the whole vocabulary."""
        target = self.target
        return DrafterConfig(
            vocab_size=target.vocab_size,
            draft_vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_attention_heads=target.num_attention_heads,
            num_key_value_heads=target.num_key_value_heads,
            head_dim=target.head_dim,
            draft_length=self.draft_length,
            target_hidden_size=target.hidden_size,
            rope=target.rope,
            max_position_embeddings=target.max_position_embeddings,
        )


def claim(config: DemoConfig) -> None:
    """Notes in the work directory what is made there; refuses to mix configurations."""
    path = config.work / "config.json"
    mine = {**dataclasses.asdict(config), "work": None, "export": None}
    if path.is_file():
        theirs = json.loads(path.read_text())
        changed = [name for name, value in mine.items() if theirs.get(name) != value]
        if changed:
            raise UserError(
                f"{config.work} was begun with another {', '.join(changed)}; pass another --work"
            )
    write_atomically(path, (json.dumps(mine, indent=2) + "\n").encode())


def make_tokenizer(config: DemoConfig) -> tokenizers.Tokenizer:
    """Trains the tokenizer, or reads the one already there."""
    path = config.work / "target" / "tokenizer.json"
    if not path.is_file():
        tokenizer = train_tokenizer(map(read, training_files()), config.vocab_size)
        write_atomically(path, tokenizer.to_str().encode())
    return tokenizers.Tokenizer.from_file(str(path))


def tokenize(tokenizer: tokenizers.Tokenizer, files: list[Path]) -> list[np.ndarray]:
    """One uint16 array a file, each closed by the end-of-text token."""
    end = end_of_text(tokenizer)
    encoded = tokenizer.encode_batch([read(file) for file in files])
    return [np.array([*document.ids, end], np.uint16) for document in encoded]


def train_target(
    config: DemoConfig, documents: list[np.ndarray], held_out: list[np.ndarray], end: int
) -> None:
    """Trains the language model; `end` is the id that ends a document."""
    if (config.work / "target" / "model.safetensors").is_file():
        return
    model = config.target
    recipe = TrainerConfig(
        steps=config.target_steps,
        batch=config.batch,
        lr=config.target_lr,
        warmup=1 / 16,
        final_lr=1 / 20,
        clip=1.0,
        b2=0.95,
        weight_decay=0.1,
        save_every=200,
        eval_every=200,
        seed=config.seed,
    )
    params = fit(
        "target",
        params=init_params(model, config.seed),
        loss=lambda params, frozen, batch, key: lm_losses(model, params, batch),
        batches=Windows(np.concatenate(documents), config.batch, config.context + 1, config.seed),
        config=recipe,
        directory=config.work / "target-training",
        # A part of the held-out text; `main` reports the loss on all of it.
        evaluate=held_out_loss(model, np.concatenate(held_out)[:20_000], config.context),
        tokens_per_step=config.batch * config.context,
    )
    save_target(config.work / "target", model, params, eos=(end,))


def make_sequences(
    config: DemoConfig, tokenizer: tokenizers.Tokenizer, training: bool
) -> Sequences:
    """The target completes functions of the training files, or of the held-out ones."""
    name = "training" if training else "held-out"
    path = config.work / f"sequences-{name}.npz"
    if path.is_file():
        with np.load(path) as file:
            return Sequences(file["tokens"], file["length"])
    files = training_files() if training else [f for g in HELD_OUT for f in held_out_files(g)]
    texts = [prompt for file in files for prompt in function_prompts(read(file))]
    prompts = [np.array(encoded.ids) for encoded in tokenizer.encode_batch(texts)]
    model, params = load_target(config.work / "target")
    sequences = regenerate(
        model,
        params,
        [prompt for prompt in prompts if len(prompt) <= config.sequence // 2],
        samplings=(Sampling(), Sampling(temperature=1.0)),
        max_length=config.sequence,
        eos=end_of_text(tokenizer),
        seed=config.seed,
    )
    buffer = io.BytesIO()
    np.savez(buffer, **sequences._asdict())
    write_atomically(path, buffer.getvalue())
    return sequences


class SequenceBatches(NamedTuple):
    """`AnchorBatches` as the trainer takes them."""

    sequences: Sequences
    batch: int
    seed: int

    @property
    def fingerprint(self) -> str:
        """Tells other sequences or another order of them."""
        return (
            f"{hashlib.sha256(np.asarray(self.sequences.tokens).data).hexdigest()[:16]} {self.seed}"
        )

    def __call__(self, step: int, rows: slice) -> Sequences:
        """Some rows of one step's batch."""
        tokens, length = AnchorBatches(self.sequences, self.batch, self.seed)(step)
        return Sequences(tokens[rows], length[rows])


def train_drafter(config: DemoConfig, training: Sequences, held_out: Sequences) -> None:
    """Trains the drafter on what the target wrote."""
    if (config.work / "drafter" / "model.safetensors").is_file():
        return
    target, target_params = load_target(config.work / "target")
    model = config.drafter
    horizon = model.num_positions

    def logits(
        params: Params, target_params: Params, batch: Sequences, anchors: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return anchored_logits(target, target_params, model, params, batch.tokens, anchors)

    def loss(
        params: Params, target_params: Params, batch: Sequences, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        anchors = draw_anchors(key, batch.length, config.anchors, horizon)
        count = jnp.float32(anchors.size)
        return annealed_kl(
            *logits(params, target_params, batch, anchors), config.gamma
        ) * count, count

    @jax.jit
    def agree(params: Params, batch: Sequences) -> jax.Array:
        key = jax.random.key(config.seed)
        anchors = draw_anchors(key, batch.length, config.anchors, horizon)
        return agreement(*logits(params, target_params, batch, anchors))

    def evaluate(params: Params) -> dict[str, float]:
        batches = AnchorBatches(held_out, config.drafter_batch)
        rates = np.mean([agree(params, batches(n)) for n in range(8)], axis=0)
        return {f"agreement_{t}": round(float(rate), 3) for t, rate in enumerate(rates, 1)}

    # The head starts as the target's own; all else is random.
    params = init_params(model, config.seed)
    params["lm_head"] = {"kernel": target_params["embed_tokens"].T}
    params = fit(
        "drafter",
        params=params,
        frozen=target_params,
        loss=loss,
        batches=SequenceBatches(training, config.drafter_batch, config.seed),
        config=TrainerConfig(
            steps=config.drafter_steps,
            batch=config.drafter_batch,
            lr=config.drafter_lr,
            warmup=1 / 16,
            final_lr=1 / 20,
            b2=0.95,
            save_every=200,
            eval_every=200,
            seed=config.seed,
        ),
        directory=config.work / "drafter-training",
        evaluate=evaluate,
    )
    ids = np.arange(model.vocab_size)
    save_drafter(config.work / "drafter", model, params, ids)


def export(config: DemoConfig, directory: Path) -> None:
    """Writes what ships: bfloat16 weights, tokenizer and n-gram model."""
    half = partial(jax.tree.map, lambda leaf: leaf.astype(jnp.bfloat16))
    target, params = load_target(config.work / "target")
    eos = load_eos(config.work / "target")
    save_target(directory / "target", target, half(params), eos)
    drafter, params, ids = load_drafter(config.work / "drafter")
    save_drafter(directory / "drafter", drafter, half(params), ids)
    for name in ("target/tokenizer.json", "ngram.dng"):
        write_atomically(directory / name, (config.work / name).read_bytes())


def main(config: DemoConfig) -> None:
    """Runs every stage that is not done.

    Raises:
      UserError: the work directory belongs to another configuration.
    """
    claim(config)
    tokenizer = make_tokenizer(config)
    documents = tokenize(tokenizer, training_files())
    held_out = tokenize(tokenizer, [f for group in HELD_OUT for f in held_out_files(group)])
    train_target(config, documents, held_out, end_of_text(tokenizer))
    model, params = load_target(config.work / "target")
    loss = held_out_loss(model, np.concatenate(held_out), config.context)(params)
    print(f"target: {loss['held_out_loss']:.3f} nats per token on all held-out text")
    sequences = make_sequences(config, tokenizer, training=True)
    train_drafter(config, sequences, make_sequences(config, tokenizer, training=False))
    made = [row[:n] for row, n in zip(sequences.tokens, sequences.length, strict=True)]
    ngram = NgramModel.count(
        [*documents, *made],
        vocab_size=tokenizer.get_vocab_size(),
        fingerprint=tokenizer_fingerprint(tokenizer),
    )
    ngram.save(config.work / "ngram.dng")
    if config.export is not None:
        export(config, config.export)


if __name__ == "__main__":
    with one_line_errors():
        main(tyro.cli(DemoConfig, description=__doc__))
