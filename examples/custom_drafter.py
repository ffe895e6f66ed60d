"""Draft with a method of your own: what follows the newest token in a text known beforehand.

    python examples/custom_drafter.py --model demo

A config selects the method, and the compiled step calls it. A bad draft costs time, but it never
changes the text. `dart_jax/decoding/drafting/prompt_lookup.py` is a method with a state.
"""

import argparse
import dataclasses

import jax.numpy as jnp

from dart_jax import DartModel
from dart_jax.decoding.drafting import DraftingMethod, DraftInput, MethodConfig, Proposal
from dart_jax.decoding.tree import chain


@dataclasses.dataclass(frozen=True)
class KnownText(MethodConfig, DraftingMethod):
    """Drafts chains of up to `nodes` tokens of `text`."""

    title = "known text"
    text: tuple[int, ...]
    nodes: int = 0

    def method(self, nodes):
        return dataclasses.replace(self, nodes=nodes)

    def empty(self, batch, capacity, dtype, options):
        """It keeps nothing between steps."""

    def read(self, draft_state, rows):
        """It reads no prompts."""

    def __call__(self, draft_state, inputs: DraftInput):
        text = jnp.array(self.text)
        newest = jnp.take_along_axis(inputs.next_tokens, inputs.last[:, None], axis=1)  # [B, 1]
        found = text[None] == newest
        after = jnp.argmax(found, axis=1)[:, None] + jnp.arange(1, self.nodes + 1)[None]
        real = found.any(axis=1)[:, None] & (after < len(text))
        drafted = text[jnp.minimum(after, len(text) - 1)]  # [B, N]
        return None, Proposal(chain(newest, drafted, real.sum(axis=1, dtype=jnp.int32)))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2", help="smollm2, demo, or a target's directory")
args = parser.parse_args()

model = DartModel.from_pretrained(args.model)
known = model.generate("def mean(values):\n", max_new_tokens=64, tree_nodes=0)
drafting = model.with_drafter(KnownText(tuple(known.tokens.tolist())))
again = drafting.generate("def mean(values):\n", max_new_tokens=64, tree_nodes=8)
print(f"tau {again.tau:.2f}, {again.drafted.mean():.0%} drafted")
print("the same text:", again.text == known.text)
