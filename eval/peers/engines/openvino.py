"""OpenVINO: the model of transformers, traced, with its cache as the state of the runtime.

OpenVINO's own exporter, optimum-intel, needs an older version of transformers.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.peers.engine import Setup, Stepwise
from eval.peers.engines.torch_model import load_model


def load(setup: Setup) -> Stepwise:
    """Traces the model and compiles it for the CPU."""
    ov: Any = importlib.import_module("openvino")
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(setup.threads)
    with torch.no_grad():
        traced = _trace(ov, torch, load_model(setup.transformers, "float32"))
    kind = {"float32": "f32", "bfloat16": "bf16"}[setup.precision]
    options = {
        "INFERENCE_PRECISION_HINT": kind,
        "KV_CACHE_PRECISION": kind,
        "INFERENCE_NUM_THREADS": setup.threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = ov.Core().compile_model(traced, "CPU", options).create_infer_request()
    beams = np.zeros(1, np.int32)

    def step(tokens: Sequence[int], position: int) -> int:
        if position == 0:
            request.reset_state()
        end = position + len(tokens)
        after = np.triu(np.ones((len(tokens), end), bool), position + 1)
        inputs = {
            "ids": np.array([tokens], np.int64),
            "positions": np.arange(position, end, dtype=np.int64)[None],
            "mask": np.where(after, np.finfo(np.float32).min, np.float32(0))[None, None],
            "beams": beams,
        }
        return int(request.infer(inputs, share_inputs=True, share_outputs=True)[0][0, 0])

    return Stepwise(setup.precision, step)


def _trace(ov: Any, torch: Any, model: Any) -> Any:
    """Returns the model: ids, positions [1, T], mask [1, 1, T, context + T] -> next token [1, 1].

    Keys and values of all layers are its state. The runtime computes attention in one kernel only
    if the state's rows are gathered by the beams that they belong to, so there is one beam.
    """
    shape = model.config
    states = 2 * shape.num_hidden_layers
    heads, size = shape.num_key_value_heads, shape.head_dim

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, positions: Any, mask: Any, past: Any) -> Any:
            cache = _Cache(torch, past)
            hidden = self.model.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask={"full_attention": mask},
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            return self.model.lm_head(hidden[:, -1:]).argmax(-1), *cache.rows

    example = {
        "ids": torch.tensor([[0, 1]]),
        "positions": torch.tensor([[3, 4]]),
        "mask": torch.zeros(1, 1, 2, 5),
        "past": tuple(torch.zeros(1, heads, 3, size) for _ in range(states)),
    }
    traced = ov.convert_model(Step(), example_input=example)
    for place, batch in zip(traced.inputs, ([-1, -1], [-1, -1], [-1, 1, -1, -1]), strict=False):
        place.get_node().set_partial_shape(ov.PartialShape(batch))
    pairs = {}
    for n in range(states):
        place = traced.inputs[3 + n]
        place.get_node().set_partial_shape(ov.PartialShape([-1, heads, -1, size]))
        place.get_tensor().set_names({f"past.{n}"})
        traced.outputs[1 + n].get_tensor().set_names({f"present.{n}"})
        pairs[f"past.{n}"] = f"present.{n}"
    _add_state(ov, traced, pairs, heads, size)
    return traced


class _Cache:
    """What the model asks of a cache: keys and values in turn, each [1, heads, rows, size]."""

    def __init__(self, torch: Any, past: Any):
        self.rows = list(past)
        self._torch = torch

    def get_seq_length(self, layer: int = 0) -> int:
        return self.rows[0].shape[2]

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        both = slice(2 * layer, 2 * layer + 2)
        self.rows[both] = [
            self._torch.cat(pair, 2) for pair in zip(self.rows[both], (keys, values), strict=True)
        ]
        return self.rows[both][0], self.rows[both][1]


def _add_state(ov: Any, traced: Any, pairs: dict[str, str], heads: int, size: int) -> None:
    """Replaces the inputs and outputs in `pairs` by a state, which begins without rows."""
    op: Any = importlib.import_module("openvino.opset13")
    passes: Any = importlib.import_module("openvino._offline_transformations")
    zero = op.constant(np.array(0, np.int64))
    beams = op.parameter([-1], np.int32, name="beams")
    beams.output(0).get_tensor().set_names({"beams"})
    traced.add_parameters([beams])
    for name in pairs:
        past = traced.input(name)
        readers = past.get_target_inputs()
        gathered = op.gather(past, beams, zero).output(0)
        for reader in readers:
            reader.replace_source_output(gathered)
    traced.validate_nodes_and_infer_types()
    passes.apply_make_stateful_transformation(traced, pairs)
    count = op.gather(
        op.shape_of(traced.input("ids"), output_type="i64"),
        op.constant(np.array([0], np.int64)),
        zero,
    )
    empty = op.concat([count, op.constant(np.array([heads, 0, size], np.int64))], 0)
    for node in traced.get_ops():
        if node.get_type_name() == "ReadValue":
            start = op.broadcast(op.constant(np.array(0, np.float32)), empty)
            node.set_arguments([start.output(0)])
    traced.validate_nodes_and_infer_types()
