"""The least that the stages of a step must move and compute, from shapes only.

Bytes are those that cross the device's memory once: weights, used rows of the caches, inputs and
outputs of a stage. Operations are those of matmuls, two per multiply-add. Masked rows of the
caches, which the programs here do read, are not counted, since they are not needed. Of a mixture's
experts those are counted that rows reach if their experts are drawn at random: trained routers send
the rows of a tree to fewer.

Where devices share models (`dart_jax.models.sharding`), costs are those of one of them: of its part
of the weights, heads and vocabulary. Experts count as if every device had equally many of those
that rows reach.

Axis letters as in `dart_jax.models.layers`; T is the verified rows, N + 1, P the rows of a path, C
the cached tokens (used rows of the caches).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

from dart_jax.decoding.drafting.eagle3_tree import Eagle3Tree
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, DraftLayerConfig, Eagle3Config
from dart_jax.models.sharding.rules import one_device
from eval.latency.shapes import AnyDraftLayer

_INT = _FLOAT = 4  # bytes of ids and of logits


class Cost(NamedTuple):
    """The least work of a program.

    Attributes:
      bytes: bytes read and written.
      operations: operations of matmuls.
    """

    bytes: int
    operations: int

    def limit(self, bandwidth: float, rate: float) -> float:
        """Returns the seconds at `bandwidth` bytes and `rate` operations per second."""
        return max(self.bytes / bandwidth, self.operations / rate)


@dataclasses.dataclass(frozen=True)
class CostModel:
    """Costs of the stages for one shape in one setting.

    Attributes:
      target: the target.
      drafter: a drafter of one layer.
      batch: batch size, B.
      context: cached tokens, C.
      itemsize: bytes per weight or activation.
      candidates: candidates per drafted position, k.
      shards: devices that share the target.
      drafter_shards: devices that share the drafter.
    """

    target: TargetConfig
    drafter: DrafterConfig
    batch: int
    context: int
    itemsize: int
    candidates: int
    shards: int = 1
    drafter_shards: int = 1

    def __post_init__(self) -> None:
        if self.drafter.num_hidden_layers > 1:
            raise UserError("only drafters of one layer are supported")

    @classmethod
    def of(
        cls, config: DecodeConfig, drafter: DrafterConfig, batch: int, context: int, itemsize: int
    ) -> CostModel:
        """The costs of one of the devices that decode by a config; `batch` is that of all."""
        execution = config.execution
        return cls(
            config.target,
            drafter,
            batch // execution.groups,
            context,
            itemsize,
            min(config.candidates, drafter.draft_vocab_size),
            execution.shards,
            execution.drafter_shards,
        )

    @functools.cached_property
    def part(self) -> TargetConfig:
        """The shapes of one device's part of the target; of a mixture all experts, since every
        device chooses among them."""
        t, n = self.target, self.shards
        moe = t.moe
        if moe is not None:
            shared = moe.shared_intermediate_size
            shared = None if shared is None else shared // n
            moe = dataclasses.replace(moe, shared_intermediate_size=shared)
        return dataclasses.replace(
            t,
            vocab_size=t.vocab_size // n,
            intermediate_size=t.intermediate_size // n,
            num_attention_heads=t.num_attention_heads // n,
            num_key_value_heads=max(t.num_key_value_heads // n, 1),
            moe=moe,
        )

    @functools.cached_property
    def draft_part(self) -> DrafterConfig:
        """The shapes of one device's part of the drafter."""
        return _part_of(self.drafter, self.drafter_shards)

    @property
    def cached_row(self) -> int:
        """Bytes of one token's keys and values in the target's cache."""
        target = self.part
        heads = 2 * target.num_key_value_heads * target.head_dim
        return self.itemsize * target.num_hidden_layers * heads

    @property
    def drafter_row(self) -> int:
        """Bytes of one token's keys and values in the drafter's cache."""
        return self.itemsize * _cached(self.draft_part)

    @property
    def features(self) -> int:
        """Bytes of one row of the target's features."""
        return self.itemsize * self.drafter.features_width

    def target_weights(self, rows: int) -> int:
        """Number of weights that a forward of the target over so many rows in all reads: all except
        the embeddings and the experts that no row reaches; a tied head is read as the head."""
        t = self.part
        d, h = t.hidden_size, t.head_dim
        norms = 2 * d + (2 * h if t.qk_norm else 0)
        layers = round(self._layers(self.reached_experts(rows)))
        return layers + t.num_hidden_layers * norms + d + d * t.vocab_size

    def reached_experts(self, rows: int) -> float:
        """Number of a mixture's experts that some row reaches; 0 without a mixture."""
        if self.target.moe is None:
            return 0
        experts, chosen = self.target.moe.num_experts, self.target.moe.num_experts_per_tok
        return experts * (1 - (1 - chosen / experts) ** rows)

    @property
    def drafter_weights(self) -> int:
        """Number of weights that every forward of the drafter reads: all."""
        d = self.draft_part
        norms = 6 * d.hidden_size  # four norms and the mask rows' vector, which is twice as wide
        return self._projection(d) + _layer_of(d) + norms + self._head

    def _layers(self, experts: float) -> float:
        """Number of matrix weights of all layers, with so many experts of each mixture, of all
        devices."""
        t = self.part
        heads = 2 * t.num_attention_heads + 2 * t.num_key_value_heads
        total = 0.0
        for layer in range(t.num_hidden_layers):
            total += t.hidden_size * t.head_dim * heads
            if t.moe is not None and t.is_sparse(layer):
                shared = t.moe.shared_intermediate_size or 0
                width = experts / self.shards * t.moe.intermediate_size + shared
                total += t.hidden_size * (t.moe.num_experts + 3 * width + bool(shared))
            else:
                total += t.hidden_size * 3 * t.intermediate_size
        return total

    @property
    def _head(self) -> int:
        return self.draft_part.hidden_size * self.draft_part.draft_vocab_size

    def _projection(self, drafter: DraftLayerConfig) -> int:
        """Number of a device's weights that project the target's features."""
        return drafter.features_width * drafter.hidden_size // self.drafter_shards

    def _draft_logits(self, path: int) -> int:
        """Bytes of the batch's draft logits: one drafted position per level of a tree whose paths
        have P rows, root included."""
        return self.batch * (path - 1) * _FLOAT * self.draft_part.draft_vocab_size

    def _candidates(self, path: int) -> int:
        """Bytes of the batch's candidates: ids and logits."""
        return self.batch * (path - 1) * self.candidates * (_INT + _FLOAT)

    def _verified(self, rows: int, path: int) -> Cost:
        """The target over T rows, of which only P are kept; logits and features do not cross the
        memory."""
        verify = self.verify(rows)
        intermediate = self.batch * rows * (_FLOAT * self.part.vocab_size + self.features)
        rejected = self.batch * (rows - path) * self.cached_row
        return Cost(verify.bytes - intermediate - rejected, verify.operations)

    def verify(self, rows: int) -> Cost:
        """Returns the cost of the target over T rows: logits, features and new cache rows."""
        t, b = self.part, self.batch
        weights = self.itemsize * (self.target_weights(b * rows) + b * rows * t.hidden_size)
        cache = b * self.cached_row * (self.context + rows)
        outputs = b * rows * (_FLOAT * t.vocab_size + self.features)
        chosen = 0 if t.moe is None else t.moe.num_experts_per_tok
        products = round(self._layers(chosen)) + t.hidden_size * t.vocab_size
        width = t.num_hidden_layers * t.num_attention_heads * t.head_dim
        attention = 2 * width * (self.context + rows)
        return Cost(weights + cache + outputs, 2 * b * rows * (products + attention))

    def accept(self, rows: int, path: int) -> Cost:
        """Returns the cost of sampling, accepting, and appending P of the T rows to the cache."""
        trees = 3 * _INT * rows
        kept = 2 * path * (self.cached_row + self.features)
        return Cost(self.batch * (rows * _FLOAT * self.part.vocab_size + trees + kept), 0)

    def draft(self, path: int) -> Cost:
        """Returns the cost of the drafter over P real rows and its mask rows."""
        d, b = self.draft_part.shortened(path - 1), self.batch
        size, heads = d.hidden_size, d.head_dim * d.num_attention_heads
        keys, masks = 2 * d.head_dim * d.num_key_value_heads, d.draft_length
        embeddings = self.itemsize * b * path * size
        rows = b * (path * self.features + self.drafter_row * (self.context + path))
        moved = self.itemsize * self.drafter_weights + embeddings + rows + self._draft_logits(path)
        # Mask rows are the same until attention: one is computed for all.
        products = path * self._projection(d) + (path + 1) * 2 * size * keys
        products += 2 * 2 * size * heads
        products += (1 + masks) * (heads * size + 3 * size * d.intermediate_size)
        products += 2 * heads * (1 + masks) * (self.context + path + masks)
        products += d.num_positions * self._head
        return Cost(moved, 2 * b * products)

    def topk(self, path: int) -> Cost:
        """Returns the cost of choosing the top k candidates of every drafted position."""
        return Cost(self._draft_logits(path) + self._candidates(path), 0)

    def pack(self, path: int) -> Cost:
        """Returns the cost of appending P rows to the drafter's cache, and of the host buffer."""
        return Cost(2 * self.batch * path * self.drafter_row + 2 * self._candidates(path), 0)

    def step(self, rows: int, path: int) -> Cost:
        """Returns the cost of the whole step; intermediate results need not cross the memory."""
        verified, draft = self._verified(rows, path), self.draft(path)
        moved = verified.bytes + draft.bytes
        moved -= self.batch * path * self.features + self._draft_logits(path)
        return Cost(moved + self._candidates(path), verified.operations + draft.operations)

    def eagle3_step(self, drafter: Eagle3Config, tree: Eagle3Tree, nodes: int) -> Cost:
        """Returns the cost of a step with an EAGLE-3 drafter instead, and trees of N nodes.

        Every level of the tree is a forward pass, which reads the layer, the head and the used rows
        of the drafter's cache again: no cache on a chip holds them from one pass to the next. The
        projection of the target's features is read once. Drafted rows' keys, values and logits are
        intermediate results.
        """
        d, b, size = _part_of(drafter, self.drafter_shards), self.batch, drafter.hidden_size
        path = min(tree.levels, nodes) + 1
        width = min(tree.top_k, drafter.draft_vocab_size, nodes)  # rows of a later pass
        later = tree.later_passes(nodes)
        head, layer, row = size * d.draft_vocab_size, _layer_of(d), _cached(d)
        projection = self._projection(d)
        weights = projection + (1 + later) * (layer + 4 * size + head)
        rows = path * size + row * (self.context + path)
        rows += later * (width * size + row * (self.context + path))
        trees = 3 * _INT * (nodes + 1)

        keys, heads = 2 * size * row, 2 * d.head_dim * d.num_attention_heads
        products = (
            path * (projection + keys) + (layer - keys) + head + heads * (self.context + path)
        )
        drafted = later * (later + 1) // 2  # a row sees itself and the drafted rows before it
        products += later * width * (layer + head + heads * (self.context + path))
        products += width * heads * drafted
        verified = self._verified(nodes + 1, path)
        moved = verified.bytes + self.itemsize * (weights + b * rows) + b * trees
        return Cost(moved, verified.operations + 2 * b * products)

    def plain(self) -> Cost:
        """Returns the cost of a plain step: one row, whose keys and values are cached."""
        return self._verified(1, 1)


def _part_of(drafter: AnyDraftLayer, shards: int) -> AnyDraftLayer:
    """The shapes of one device's part of a drafter."""
    each = dataclasses.replace(
        drafter,
        draft_vocab_size=drafter.draft_vocab_size // shards,
        num_key_value_heads=max(drafter.num_key_value_heads, shards),
    )
    return one_device(each, shards)


def _layer_of(drafter: DraftLayerConfig) -> int:
    """Number of matrix weights of a drafter's layer, whose input is twice as wide."""
    heads = 3 * drafter.num_attention_heads + 4 * drafter.num_key_value_heads
    return drafter.hidden_size * (drafter.head_dim * heads + 3 * drafter.intermediate_size)


def _cached(drafter: DraftLayerConfig) -> int:
    """Numbers in one token's keys and values in a drafter's cache."""
    return 2 * drafter.num_key_value_heads * drafter.head_dim
